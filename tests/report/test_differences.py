"""Every method beside the best and beside FedAPM."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedapm.report import summary_table
from fedapm.report.comparison.columns import metric_column
from fedapm.report.comparison.differences import Against, against_references, difference_text, interval_text
from fedapm.report.comparison.sections.summary import differences
from fedapm.report.figures.differences import cut_off
from fedapm.report.results import Results
from fedapm.runs.records import find_runs
from tests.report.fake_runs import ACCURACY as METRIC
from tests.report.fake_runs import tiny_run, write_comparison
from tests.report.pages import Shown, check_markup, page_of, words_of

ACCURACY = metric_column(METRIC)


def references_of(folder: Path) -> list[Against]:
    return against_references(summary_table(find_runs(folder)), ACCURACY)


def test_the_best_and_fedapm_are_what_others_are_held_against(tmp_path: Path) -> None:
    for name, scores in {"fedavg": (0.9, 0.8), "fedapm": (0.85, 0.79), "local": (0.5, 0.6)}.items():
        for seed, score in enumerate(scores):
            tiny_run(tmp_path / name / str(seed), name, seed, [[0.1], [score]])
    best, ours = references_of(tmp_path)
    assert (best.reference, best.is_best, list(best.differences)) == ("Fedavg", True, ["Fedapm", "Local"])
    assert (ours.reference, ours.is_best, list(ours.differences)) == ("Fedapm", False, ["Fedavg", "Local"])
    found = ours.differences["Fedavg"]
    assert found is not None
    assert found.mean == pytest.approx(0.03)
    assert (difference_text(found, ACCURACY), interval_text(found, ACCURACY)) == ("+3.00", "−22.41 to +28.41")


def test_fedapm_in_front_is_not_held_against_twice(compared: Shown) -> None:
    (only,) = references_of(compared.folder)
    assert (only.reference, only.is_best) == ("FedAPM", True)
    page, words = compared.page, compared.words
    assert "Against FedAPM the best, points" in words
    assert "mean over 3 common seeds is its 95% t-interval; if it includes zero" in words
    assert "in common" not in words
    assert page.count('aria-label="Accuracy minus that of FedAPM (points): Local −') == 1


def test_one_seed_has_a_difference_and_no_interval(tmp_path: Path) -> None:
    words = words_of(page_of(write_comparison(tmp_path, seeds=(1,))))
    assert "One common seed does not show how much results vary" in words
    assert "t-interval; if it includes" not in words
    (only,) = references_of(tmp_path)
    assert only.only_one_seed()
    assert all(found is not None and interval_text(found, ACCURACY) == "" for found in only.differences.values())


def test_without_a_common_seed_there_is_a_dash(tmp_path: Path) -> None:
    tiny_run(tmp_path / "a", "fedapm", 1, [[0.9]])
    tiny_run(tmp_path / "b", "fedavg", 2, [[0.5]])
    (only,) = references_of(tmp_path)
    assert only.differences == {"Fedavg": None}
    check_markup(page_of(tmp_path))


def test_unequal_numbers_of_common_seeds_have_a_column(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        tiny_run(tmp_path / "a" / str(seed), "fedapm", seed, [[0.9 + 0.01 * seed]])
        tiny_run(tmp_path / "b" / str(seed), "fedavg", seed, [[0.5 + 0.03 * seed]])
    for seed in (1, 2):
        tiny_run(tmp_path / "c" / str(seed), "local", seed, [[0.4 + 0.05 * seed]])
    words = words_of(page_of(tmp_path))
    assert "Seeds in common" in words
    assert "mean over common seeds is" in words


def test_long_whiskers_are_cut_and_that_is_said(compared: Shown, tmp_path: Path) -> None:
    for seed, (one, other) in enumerate([(0.90, 0.80), (0.70, 0.78)]):
        tiny_run(tmp_path / "a" / str(seed), "fedapm", seed, [[one]])
        tiny_run(tmp_path / "b" / str(seed), "fedavg", seed, [[other]])
    (only,) = references_of(tmp_path)
    assert cut_off(only)
    assert "continues beyond the figure" in words_of(page_of(tmp_path))
    assert not cut_off(references_of(compared.folder)[0])
    assert "continues beyond the figure" not in compared.words


def test_equal_methods_differ_by_zero(tmp_path: Path) -> None:
    for seed in (1, 2):
        tiny_run(tmp_path / "a" / str(seed), "fedapm", seed, [[0.5]])
        tiny_run(tmp_path / "b" / str(seed), "fedavg", seed, [[0.5]])
    context = differences(Results.of(find_runs(tmp_path)))
    assert context is not None
    assert context["same_seeds"] == "2"
    assert "Fedavg 0.00 (0.00 to 0.00)" in context["figures"][0].svg


def test_a_lower_loss_is_better(regression: Shown) -> None:
    assert "a negative difference is better" in regression.words
    assert "units of the loss" in regression.words
