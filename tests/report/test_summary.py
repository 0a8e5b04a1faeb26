"""The numbers of the comparison against a computation by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedapm.report import SummaryRow, best_round_columns, filled_columns, summary_table
from fedapm.runs.records import find_runs
from tests.report.fake_runs import COMPARISON, Fake, tiny_run, write_comparison, write_fake


def rows_of(folder: Path) -> dict[str, SummaryRow]:
    return {row.label: row for row in summary_table(find_runs(folder))}


def test_means_and_spread_by_hand(tmp_path: Path) -> None:
    tiny_run(tmp_path / "a" / "seed-1", "fedavg", 1, [[0.1, 0.1], [0.6, 1.0], [0.5, 0.7]])
    tiny_run(tmp_path / "a" / "seed-2", "fedavg", 2, [[0.1, 0.1], [0.4, 0.4], [0.8, 0.8]])
    row = rows_of(tmp_path)["Fedavg"]
    assert row.seeds == (1, 2)
    assert row.clients == 2
    assert row.cells["accuracy"].values == pytest.approx({1: 0.6, 2: 0.8})
    assert row.cells["accuracy"].mean == pytest.approx(0.7)
    assert row.cells["accuracy"].std == pytest.approx(math.sqrt(2 * 0.1**2))
    assert row.cells["best_round_accuracy"].values == pytest.approx({1: 0.8, 2: 0.8})
    assert row.cells["worst10_accuracy"].values == pytest.approx({1: 0.5, 2: 0.8})
    assert row.cells["drift"].mean == 1.0
    assert row.cells["megabytes"].mean == 3.0
    assert row.cells["megabytes"].std == 0.0
    assert row.cells["f1"].mean is None


def test_each_score_has_a_best_round_of_its_own(tmp_path: Path) -> None:
    by_seed = {1: [(0.2, 0.5), (0.6, 0.4), (0.5, 0.9)], 2: [(0.9, 0.1), (0.3, 0.2), (0.4, None)]}
    for seed, scores in by_seed.items():
        path = tiny_run(tmp_path / str(seed), "fedapm", seed, [[0.1], [0.7], [0.3]])
        rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        for row, (f1, auc) in zip(rows, scores, strict=True):
            row["evaluations"]["model"] |= {"f1": {"mean": f1}, "auc": {"mean": auc}}
        (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = rows_of(tmp_path)["Fedapm"]
    assert row.cells["best_round_accuracy"].values == {1: 0.7, 2: 0.7}
    assert row.cells["best_round_f1"].values == {1: 0.6, 2: 0.9}
    assert row.cells["best_round_auc"].values == {1: 0.9, 2: 0.2}
    assert row.cells["best_round_f1"].mean == pytest.approx(0.75)
    assert row.cells["best_round_f1"].std == pytest.approx(math.sqrt(2 * 0.15**2))
    assert row.cells["f1"].values == {1: 0.5, 2: 0.4}
    assert [column.field for column in best_round_columns([row])] == [
        "best_round_accuracy",
        "best_round_f1",
        "best_round_auc",
    ]
    assert row.as_dict()["best_round_auc"]["seeds"] == {"1": 0.9, "2": 0.2}


def test_one_seed_has_no_spread_and_no_mark(tmp_path: Path) -> None:
    rows = rows_of(write_comparison(tmp_path, seeds=(7,)))
    assert all(row.cells["accuracy"].std is None for row in rows.values())
    assert not any(row.cell(column).best for row in rows.values() for column in filled_columns([row]))


def test_a_clear_winner_is_marked_and_the_order_is_by_accuracy(tmp_path: Path) -> None:
    rows = summary_table(find_runs(write_comparison(tmp_path)))
    assert [row.label for row in rows] == ["FedAPM", "Local", "FedAvg"]
    assert [row.cells["accuracy"].best for row in rows] == [True, False, False]
    assert not rows[1].cells["megabytes"].best, "sending nothing is no contest"
    assert [row.cells["drift"].best for row in rows] == [True, False, False]


def test_overlapping_methods_are_not_marked(tmp_path: Path) -> None:
    for seed, (one, other) in enumerate([(0.9, 0.8), (0.7, 0.72), (0.8, 0.79)]):
        tiny_run(tmp_path / "a" / str(seed), "fedavg", seed, [[one, one]])
        tiny_run(tmp_path / "b" / str(seed), "fedapm", seed, [[other, other]])
    assert not any(row.cells["accuracy"].best for row in rows_of(tmp_path).values())


def test_several_views_are_rows_of_their_own(tmp_path: Path) -> None:
    fake = Fake("ditto", "Ditto", views={"personal": 0.9, "global": 0.7})
    write_comparison(tmp_path, (fake, COMPARISON[0]), seeds=(1, 2))
    rows = rows_of(tmp_path)
    assert set(rows) == {"Ditto-personal", "Ditto-global", "FedAPM"}
    assert rows["Ditto-global"].view == "global"
    assert rows["FedAPM"].view == "model"
    assert rows["Ditto-global"].cells["megabytes"] == rows["Ditto-personal"].cells["megabytes"]


def test_the_auc_says_how_many_clients_it_counts(tmp_path: Path) -> None:
    write_fake(tmp_path, Fake("fedapm", "FedAPM"))
    (row,) = rows_of(tmp_path).values()
    assert row.auc_clients == (5,)
    assert row.clients == 6


def test_regression_has_losses_and_nothing_else(tmp_path: Path) -> None:
    fakes = tuple(replace(fake, regression=True) for fake in COMPARISON)
    rows = summary_table(find_runs(write_comparison(tmp_path, fakes)))
    assert [column.field for column in filled_columns(rows)] == [
        "test_loss",
        "worst10_test_loss",
        "train_loss",
        "drift",
        "megabytes",
    ]
    losses = [row.cells["test_loss"].mean or 0.0 for row in rows]
    assert losses == sorted(losses)
    assert rows[0].cells["test_loss"].best


def test_a_score_no_client_has_is_no_column(tmp_path: Path) -> None:
    write_fake(tmp_path, Fake("fedapm", "FedAPM", auc=False))
    rows = summary_table(find_runs(tmp_path))
    assert "auc" not in [column.field for column in filled_columns(rows)]
    assert rows[0].cells["auc"].mean is None


def test_an_incomplete_seed_does_not_count_and_costs_the_mark(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    whole = rows_of(tmp_path)["FedAPM"]
    write_fake(tmp_path / "fedapm" / "seed-3", replace(COMPARISON[0], seed=3, status="diverged", reached=4))
    rows = rows_of(tmp_path)
    assert rows["FedAPM"].seeds == (1, 2)
    assert rows["FedAPM"].cells["accuracy"].values == {s: whole.cells["accuracy"].values[s] for s in (1, 2)}
    assert whole.cells["accuracy"].best
    assert not rows["FedAPM"].complete
    assert not any(row.cells["accuracy"].best for row in rows.values())


def test_where_no_run_is_complete_all_are_shown(tmp_path: Path) -> None:
    write_fake(tmp_path, replace(COMPARISON[0], status="interrupted", reached=4, every=3))
    (row,) = rows_of(tmp_path).values()
    assert row.seeds == (1,)
    assert not row.complete


def test_a_run_that_was_never_evaluated_has_no_row(tmp_path: Path) -> None:
    write_fake(tmp_path, replace(COMPARISON[0], status="running", reached=-1))
    assert summary_table(find_runs(tmp_path)) == []


def test_other_data_is_not_compared(tmp_path: Path) -> None:
    write_comparison(tmp_path, (COMPARISON[0], replace(COMPARISON[1], data="mnist")))
    assert not any(row.cells["accuracy"].best for row in rows_of(tmp_path).values())


def test_missing_seeds_are_paired_over_what_is_common(tmp_path: Path) -> None:
    for seed, accuracy in ((1, 0.2), (2, 0.9), (3, 0.91)):
        tiny_run(tmp_path / "a" / str(seed), "fedapm", seed, [[accuracy]])
    for seed, accuracy in ((2, 0.5), (3, 0.51), (4, 0.3)):
        tiny_run(tmp_path / "b" / str(seed), "fedavg", seed, [[accuracy]])
    rows = rows_of(tmp_path)
    assert rows["Fedapm"].cells["accuracy"].best
    assert rows["Fedavg"].seeds == (2, 3, 4)


def test_the_same_seed_twice_is_two_methods(tmp_path: Path) -> None:
    for name, accuracy in (("fast", 0.9), ("slow", 0.8)):
        for seed in (1, 2):
            tiny_run(tmp_path / name / f"seed-{seed}", "fedapm", seed, [[accuracy]])
    assert set(rows_of(tmp_path)) == {"Fedapm (fast)", "Fedapm (slow)"}
    tiny_run(tmp_path / "flat" / "x", "fedavg", 1, [[0.5]])
    tiny_run(tmp_path / "flat" / "y", "fedavg", 1, [[0.6]])
    assert {"Fedavg (flat/x)", "Fedavg (flat/y)"} <= set(rows_of(tmp_path))


def test_a_folder_of_a_sweep_is_called_by_its_value_without_a_digest(tmp_path: Path) -> None:
    for name in ("model.personal=head~1f13dd", "model.personal=body-head~9aa6cc"):
        tiny_run(tmp_path / name / "fedapm" / "seed-0", "fedapm", 0, [[0.5]])
    labels = {"Fedapm (model.personal=head/fedapm)", "Fedapm (model.personal=body-head/fedapm)"}
    assert set(rows_of(tmp_path)) == labels
    tiny_run(tmp_path / "model.personal=head~222222" / "fedapm" / "seed-0", "fedapm", 0, [[0.5]])
    assert any("~222222" in label for label in rows_of(tmp_path)), "where it is needed to tell two apart, it stays"


def test_two_methods_with_one_label_are_told_apart(tmp_path: Path) -> None:
    tiny_run(tmp_path / "a", "fedavg", 1, [[0.5]], label="Mine")
    tiny_run(tmp_path / "b", "fedapm", 1, [[0.6]], label="Mine")
    assert set(rows_of(tmp_path)) == {"Mine (fedavg)", "Mine (fedapm)"}


def test_what_was_not_finite_is_a_missing_value(tmp_path: Path) -> None:
    path = write_fake(tmp_path, Fake("fedapm", "FedAPM"))
    lines = (path / "rounds.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["evaluations"]["model"]["train_loss"]["mean"] = None
    last["drift"] = None
    (path / "rounds.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    (row,) = rows_of(tmp_path).values()
    assert row.cells["train_loss"].values == {}
    assert math.isfinite(row.cells["drift"].mean or math.inf)


def test_a_model_whose_evaluations_are_empty_has_no_row(tmp_path: Path) -> None:
    path = write_fake(tmp_path, Fake("fedapm", "FedAPM"))
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    empty = [line | {"evaluations": {"model": {}} if line["evaluations"] else None} for line in lines]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in empty))
    assert rows_of(tmp_path) == {}


def test_a_row_is_json(tmp_path: Path) -> None:
    rows = summary_table(find_runs(write_comparison(tmp_path)))
    table = json.loads(json.dumps([row.as_dict() for row in rows], allow_nan=False))
    assert table[0]["label"] == "FedAPM"
    assert table[0]["accuracy"]["mean"] == rows[0].cells["accuracy"].mean
    assert table[0]["accuracy"]["best"] is True
    assert set(table[0]["accuracy"]["seeds"]) == {"1", "2", "3"}
