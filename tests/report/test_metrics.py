"""A metric of the user's own is shown like any other, from what the run says about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedapm.core.metrics import METRICS, Metric
from fedapm.report import best_round_columns, filled_columns, main_column, summary_table
from fedapm.report.card import write_card
from fedapm.report.metrics import MetricInfo, metrics_of
from fedapm.runs.records import find_runs
from tests.report.fake_runs import COMPARISON, Fake, write_comparison, write_fake
from tests.report.pages import Shown, check_markup, page_of, show, terminal_of, words_of

TOP5 = MetricInfo("top5", "Top-5 accuracy", "%")
ERROR = MetricInfo("calibration_error", "Calibration error", higher_is_better=False)


@pytest.fixture(scope="module")
def extra(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Three methods, three seeds, two metrics that nobody but the runs describes, and targets for them."""
    fakes = tuple(replace(fake, metrics=(TOP5, ERROR)) for fake in COMPARISON)
    folder = write_comparison(tmp_path_factory.mktemp("extra"), fakes)
    levels = {"targets": {"top5": 0.8, "calibration_error": 0.3}}
    (folder / "compare.json").write_text(json.dumps(levels), encoding="utf-8")
    return show(folder)


def test_it_has_a_column_after_the_built_in_metrics(extra: Shown) -> None:
    rows = summary_table(find_runs(extra.folder))
    fields = [column.field for column in filled_columns(rows)]
    assert fields[:5] == ["accuracy", "f1", "auc", "worst10_accuracy", "train_loss"]
    assert fields[5:] == ["top5", "calibration_error", "drift", "megabytes"]
    assert [column.field for column in best_round_columns(rows)][-1] == "best_round_top5"
    assert main_column(rows).field == "accuracy"
    assert rows[0].cells["top5"].best
    assert rows[0].cells["calibration_error"].best, "the lowest error is the best"
    assert "Top-5 accuracy % ↑ Calibration error ↓" in extra.words
    assert "Top-5 accuracy, %" in terminal_of(extra.folder, 400)


def test_it_has_a_curve(extra: Shown) -> None:
    check_markup(extra.page)
    assert "Top-5 accuracy by round" in extra.words
    assert "Calibration error by megabytes sent" in extra.words
    assert 'aria-label="Top-5 accuracy in per cent against rounds.' in extra.page


def test_it_can_be_a_target_and_is_reached_from_the_right_side(extra: Shown) -> None:
    assert "Top-5 accuracy 80%" in extra.words
    section = extra.words.split("Calibration error 0.3")[1]
    assert "FedAPM" in section[:60]
    assert "3 of 3" in section[:120]


def test_it_is_in_json_and_on_the_card(extra: Shown) -> None:
    row = summary_table(find_runs(extra.folder))[0].as_dict()
    assert list(row)[-4:] == ["best_round_accuracy", "best_round_f1", "best_round_auc", "best_round_top5"]
    assert set(row["calibration_error"]["seeds"]) == {"1", "2", "3"}
    text = write_card(extra.folder).read_text("utf-8")
    assert "Training loss | Top-5 accuracy, % | Calibration error | Drift" in text


def test_a_run_may_have_nothing_else(tmp_path: Path) -> None:
    path = write_fake(tmp_path / "run", Fake("fedapm", "FedAPM", metrics=(TOP5,)))
    rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        scores = row["evaluations"]["model"]
        per_client = {"top5": scores["per_client"]["top5"]}
        row["evaluations"]["model"] = {"top5": scores["top5"], "per_client": per_client}
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(tmp_path)
    check_markup(page)
    assert "mean top-5 accuracy of" in words_of(page)


@pytest.fixture
def registered() -> Iterator[Metric]:
    metric = Metric("brier", "Brier score", lambda predictions: 0.0, higher_is_better=False)
    METRICS.register("brier", metric)
    yield metric
    METRICS._items.pop("brier")


def test_a_registered_metric_needs_no_description(registered: Metric, tmp_path: Path) -> None:
    described = MetricInfo("brier", "Brier score", higher_is_better=False)
    assert metrics_of([])[-1] == described
    run = write_fake(tmp_path, Fake("fedapm", "FedAPM", metrics=(described,)))
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "metrics": None}))
    assert "Brier score by round" in words_of(page_of(tmp_path))


@pytest.mark.parametrize("metrics", [None, [], [{}], [{"title": "nameless"}]])
def test_runs_that_describe_nothing_useful(tmp_path: Path, metrics: object) -> None:
    run = write_fake(tmp_path, Fake("fedapm", "FedAPM"))
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "metrics": metrics}))
    assert [metric.name for metric in metrics_of(find_runs(tmp_path))] == list(METRICS)
