"""Runs evaluated on validation data: stated wherever a reader would take a score for a test score."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedapm.report import summary_table
from fedapm.report.comparison.sections.warnings import unequal_terms
from fedapm.report.comparison.series import group_runs
from fedapm.report.evaluated_on import evaluated_on, validation_share, wording
from fedapm.runs.records import find_runs
from tests.report.fake_runs import COMPARISON, Fake, tiny_run, write_comparison, write_fake
from tests.report.pages import Shown, check_markup, page_of, terminal_of, words_of

VALIDATED = '[data]\nvalidation = 0.2\npartition = "overlapping"\n'


def validated(fakes: tuple[Fake, ...] = COMPARISON) -> tuple[Fake, ...]:
    return tuple(replace(fake, config=VALIDATED) for fake in fakes)


def test_a_report_on_validation_data_says_so_first_and_last(tmp_path: Path) -> None:
    page = page_of(write_comparison(tmp_path, validated()))
    check_markup(page)
    words = words_of(page)
    sentence = "Every score here is a validation score: each client is evaluated on 20% of its training data"
    assert words.count(sentence) == 2
    assert words.index(sentence) < words.index("Summary on validation data")
    assert "highest mean validation accuracy" in words
    assert "Validation examples" in words
    assert "Clients draw their data from one pool" in words
    assert "chosen with the validation data" in words
    assert "Test examples" not in words
    assert "test data has" not in words
    assert "Not everything went as planned" not in words


def test_a_report_on_test_data_does_not(compared: Shown) -> None:
    assert "alidation" not in compared.words
    assert "Test examples" in compared.words


def test_losses_are_validation_losses(tmp_path: Path) -> None:
    page = page_of(write_comparison(tmp_path, validated(tuple(replace(f, regression=True) for f in COMPARISON))))
    check_markup(page)
    words = words_of(page)
    assert "lowest mean validation loss" in words
    assert "Validation loss by round" in words
    assert "est loss" not in page


def test_both_kinds_in_one_report_is_a_problem(tmp_path: Path) -> None:
    write_comparison(tmp_path, (replace(COMPARISON[0], config=VALIDATED), *COMPARISON[1:]))
    words = words_of(page_of(tmp_path))
    assert "two kinds: FedAPM is evaluated on validation data and FedAvg and Local on test data" in words
    assert "Not everything went as planned" in words
    assert "do not compare" in words
    rows = summary_table(find_runs(tmp_path))
    assert not any(row.cells["accuracy"].best for row in rows)
    assert {row.label: row.evaluated_on for row in rows} == {"FedAPM": "validation", "FedAvg": "test", "Local": "test"}
    assert "some are validation scores" in terminal_of(tmp_path)


def test_both_kinds_in_one_method(tmp_path: Path) -> None:
    tiny_run(tmp_path / "1", "fedapm", 1, [[0.5]], config=VALIDATED)
    tiny_run(tmp_path / "2", "fedapm", 2, [[0.5]])
    (row,) = summary_table(find_runs(tmp_path))
    assert row.evaluated_on == "both"
    assert row.as_dict()["judged_by"] == "both"
    sentences = " ".join(unequal_terms(group_runs(find_runs(tmp_path))))
    assert "Fedapm is evaluated on validation data and Fedapm on test data" in sentences


@pytest.mark.parametrize(
    ("config", "share"),
    [
        (VALIDATED, 0.2),
        ("[data]\nvalidation = 0.0\n", 0.0),
        ("[data]\n", 0.0),
        ("data = 3\n", 0.0),
        ('[data]\nvalidation = "much"\n', 0.0),
        ("[data\n", 0.0),
        ("", 0.0),
    ],
)
def test_what_a_configuration_says(tmp_path: Path, config: str, share: float) -> None:
    write_fake(tmp_path, replace(COMPARISON[0], config=config))
    (run,) = find_runs(tmp_path)
    assert validation_share(run) == share
    assert evaluated_on([run]) == ("validation" if share else "test")


def test_words_are_replaced_whole() -> None:
    reword = wording("validation")
    assert reword("Test loss on test data, the latest") == "Validation loss on validation data, the latest"
    assert wording("test")("Test loss") == "Test loss"


def test_the_terminal_says_validation(tmp_path: Path) -> None:
    table = terminal_of(write_comparison(tmp_path, validated()))
    assert "on validation data" in table
    assert "chosen with validation data" in table
