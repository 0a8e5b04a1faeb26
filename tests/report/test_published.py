"""Published numbers in a report: beside ours, labelled, and only where they belong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedapm.report.comparison.curves import OF_ROUNDS, of_metric
from fedapm.report.comparison.sections.published import SCORES, publication, published_data, published_lines
from fedapm.report.comparison.sections.warnings import data_notices
from fedapm.report.comparison.series import all_series, group_runs
from fedapm.report.comparison.summary import summary_table
from fedapm.report.figures.style import assign_styles
from fedapm.runs.records import find_runs
from tests.report.fake_runs import ACCURACY as METRIC
from tests.report.fake_runs import COMPARISON, Fake, write_comparison
from tests.report.pages import Shown, check_markup, page_of, words_of

ACCURACY = of_metric(METRIC)
DRIFT = next(quantity for quantity in OF_ROUNDS if quantity.key == "drift")
DITTO = Fake("ditto", "Ditto", views={"P": 0.9, "G": 0.7})


def on(data: str, config: str | None = None) -> tuple[Fake, ...]:
    return tuple(replace(fake, data=data, config=config) for fake in (*COMPARISON, DITTO))


def test_the_section_on_cifar10(tmp_path: Path) -> None:
    page = page_of(write_comparison(tmp_path, on("cifar10")))
    check_markup(page)
    words = words_of(page)
    assert "what the paper’s authors printed for cifar10" in words
    assert "do not compare line by line" in words
    assert "while here a sample belongs to one client" in words
    assert "sum over a client’s 48 mini-batches" in words
    assert "Nothing was published for Local" in words
    assert page.count("; thin broken lines: published") == 1
    assert "Published curves, at the last round shown: FedAPM 45.82, FedAvg" in page


def test_published_rows_meet_ours_by_method_and_model(tmp_path: Path) -> None:
    runs = find_runs(write_comparison(tmp_path, on("cifar10")))
    rows = summary_table(runs)
    found = publication(runs, rows)
    assert found is not None
    ours = {pair.published.label: pair.here.label for pair in found.pairs if pair.here is not None}
    assert ours == {"FedAPM": "FedAPM", "FedAvg": "FedAvg", "Ditto-P": "Ditto-P", "Ditto-G": "Ditto-G"}
    assert [pair.here is None for pair in found.pairs] == [False] * 4 + [True] * 10
    first = found.pairs[0]
    assert [first.published_text(score) for score in SCORES] == ["73.8", "72.5", "87.3"]
    assert first.here is not None
    assert [first.here_cell(score) for score in SCORES] == [
        first.here.cells["best_round_accuracy"],
        first.here.cells["best_round_f1"],
        first.here.cells["best_round_auc"],
    ]


def test_curves_are_cut_at_the_rounds_of_the_runs_and_in_per_cent(tmp_path: Path) -> None:
    series = all_series(group_runs(find_runs(write_comparison(tmp_path, on("cifar10"), seeds=(1,)))))
    styles = assign_styles(series)
    lines = published_lines("cifar10", ACCURACY, series, styles, 12)
    assert [line.name for line in lines] == ["FedAPM", "FedAvg"]
    assert lines[0].rounds == list(range(13))
    assert lines[0].values[-1] == pytest.approx(45.825)
    assert lines[0].color == styles["FedAPM"].color
    assert published_lines("cifar10", ACCURACY, series, styles, 301)[0].rounds[-1] == 300
    assert published_lines(None, ACCURACY, series, styles, 12) == []


def test_drift_is_drawn_where_it_is_of_the_same_tensors(tmp_path: Path) -> None:
    runs = find_runs(write_comparison(tmp_path, on("ku-har"), seeds=(1,)))
    series = all_series(group_runs(runs))
    assert published_lines("cifar10", DRIFT, series, assign_styles(series), 12) == []
    lines = published_lines("ku-har", DRIFT, series, assign_styles(series), 12)
    assert [line.rounds for line in lines] == [list(range(1, 13))] * 2
    found = publication(runs, summary_table(runs))
    assert found is not None
    assert "Their drift follows the formula used here" in found.about_curves
    assert "draw from one pool" not in found.why_not_comparable


def test_no_curve_is_drawn_twice(tmp_path: Path) -> None:
    for part in ("fast", "slow"):
        write_comparison(tmp_path / part, on("cifar10")[:1])
    series = all_series(group_runs(find_runs(tmp_path)))
    assert len(series) == 2
    assert len(published_lines("cifar10", ACCURACY, series, assign_styles(series), 12)) == 1
    found = publication(find_runs(tmp_path), summary_table(find_runs(tmp_path)))
    assert found is not None
    assert [pair.published.label for pair in found.pairs if pair.here is not None] == ["FedAPM", "FedAPM"]


def test_data_sets_without_curves_and_without_anything(compared: Shown, tmp_path: Path) -> None:
    runs = find_runs(write_comparison(tmp_path, on("cifar100")[:2], seeds=(1,)))
    found = publication(runs, summary_table(runs))
    assert found is not None
    assert found.about_curves == "No curves were published for this data set."
    series = all_series(group_runs(runs))
    assert published_lines("cifar100", ACCURACY, series, assign_styles(series), 12) == []
    assert "#published" not in compared.page


def test_clients_that_draw_from_one_pool_are_said_to(tmp_path: Path) -> None:
    fakes = on("crisismmd", '[data]\npartition = "overlapping"\n')[:2]
    runs = find_runs(write_comparison(tmp_path, fakes, seeds=(1,)))
    found = publication(runs, summary_table(runs))
    assert found is not None
    assert "training sample of another, as they do here" in found.why_not_comparable
    (sentence,) = data_notices(runs)
    assert "which makes every method" in sentence


def test_two_data_sets_at_once_have_no_published_values(tmp_path: Path) -> None:
    write_comparison(tmp_path, (replace(COMPARISON[0], data="cifar10"), replace(COMPARISON[1], data="ku-har")))
    runs = find_runs(tmp_path)
    assert published_data(runs) is None
    assert publication(runs, summary_table(runs)) is None
