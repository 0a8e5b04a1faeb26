"""What single settings do, from lines whose answers are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedapm.report.study.merge import StudySummary, merge, read_summary, write_summary
from fedapm.report.study.sweeps import SweepLine, read_sweeps, sentence, sweep_tables, write_sweeps
from tests.helpers.unit import refused
from tests.report.test_study_merge import line as run

KAPPA = "algorithm.kappa"


def line(
    value: float, accuracy: float | None, *, seed: int = 0, case: str = "digits", method: str = "fedapm"
) -> SweepLine:
    label, status = {"fedapm": "FedAPM", "fedalt": "FedAlt"}[method], "diverged" if accuracy is None else "complete"
    return SweepLine(case, case.title(), 0.3, KAPPA, value, method, label, seed, status, accuracy, 0.1, None)


LINES = [
    line(0.4, 0.8),
    line(0.4, 0.9, seed=1),
    line(0.1, 0.7),
    line(0.1, 0.7, seed=1),
    line(0.1, None, case="waves"),
    line(0.4, 0.5, case="waves"),
    line(0.4, 0.6, method="fedalt"),
]


def test_values_are_columns_in_order_and_data_sets_with_methods_are_rows() -> None:
    (table,) = sweep_tables(LINES)
    assert table.headings == ("Data set", "Method", "0.1", "0.4")
    assert table.cells == [
        ("Digits", "FedAPM", "70.00 ± 0.00", "85.00 ± 7.07"),
        ("Waves", "FedAPM", "diverged", "50.00"),
        ("Digits", "FedAlt", "–", "60.00"),
    ]


def test_the_sentence_has_the_best_and_the_worst_value() -> None:
    text = sentence(sweep_tables(LINES)[0])
    assert text.endswith("each a mean over seeds: Digits 15.00 (best at 0.4, worst at 0.1).")
    others = [line(value, 0.5, method="fedalt") for value in (0.1, 0.2)]
    assert sentence(sweep_tables(others)[0]) == ""


def test_the_figure_has_a_line_for_each_data_set() -> None:
    figure = str(sweep_tables(LINES)[0].figure)
    assert figure.count("<svg") == 1
    assert "Digits at 0.4" in figure
    assert "Waves at 0.4" in figure
    assert "FedAlt" not in figure


def test_lines_survive_their_file(tmp_path: Path) -> None:
    write_sweeps(tmp_path / "sweeps.csv", LINES)
    assert read_sweeps(tmp_path / "sweeps.csv") == LINES
    assert read_sweeps(tmp_path / "none.csv") == []


@pytest.mark.parametrize(
    ("change", "mentions"),
    [
        (lambda text: text.replace("kappa", "kappa,"), ["line 2", "columns"]),
        (lambda text: text.replace(",0.4,", ",often,", 1), ["line 2", "value is 'often'"]),
        (lambda text: text.replace("setting", "sitting"), ["is not the sweeps of a study"]),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, change, mentions: list[str]) -> None:
    path = tmp_path / "sweeps.csv"
    write_sweeps(path, LINES)
    path.write_text(change(path.read_text()))
    with refused("sweeps.csv", *mentions):
        read_sweeps(path)


def test_sweeps_go_with_their_part(tmp_path: Path) -> None:
    base = {"title": "A study", "cases": {"digits": {"plan": {}}, "waves": {"plan": {}}}}
    one = StudySummary([run("waves", 0.3, 0.5)], base, [], [line(0.1, 0.5, case="waves"), line(0.1, 0.1)])
    two = StudySummary([run("digits", 0.3, 0.5)], base, [], [line(0.1, 0.9)])
    whole = merge([one, two])
    assert [(found.case, found.accuracy) for found in whole.swept] == [("digits", 0.9), ("waves", 0.5)]
    write_summary(tmp_path, whole)
    assert read_summary(tmp_path).swept == whole.swept
