"""Rounds and megabytes to a target, against a computation by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedapm.errors import FedapmError
from fedapm.report import Target, TargetRow, read_targets, target_tables
from fedapm.report.comparison.sections.targets import choose_targets, longest_gap
from fedapm.runs.records import find_runs
from tests.report.fake_runs import ACCURACY, COMPARISON, TRAIN_LOSS, tiny_run, write_comparison, write_fake
from tests.report.pages import Shown, check_markup, page_of, words_of


def rows_of(folder: Path, target: Target) -> dict[str, TargetRow]:
    (table,), unknown = target_tables(find_runs(folder), [target])
    assert unknown == []
    return {row.label: row for row in table.rows}


def test_the_first_round_of_each_seed_then_the_mean(tmp_path: Path) -> None:
    tiny_run(tmp_path / "1", "fedapm", 1, [[0.1], [0.4, 0.8], [0.5], [0.9]])
    tiny_run(tmp_path / "2", "fedapm", 2, [[0.1], [0.2], [0.59], [0.7]])
    row = rows_of(tmp_path, Target(ACCURACY, 0.6, chosen=False))["Fedapm"]
    assert row.rounds.values == {1: 1, 2: 3}
    assert (row.rounds_text, row.spread_text) == ("2.0", "± 1.4")
    assert row.megabytes.values == {1: 1.5, 2: 4.5}
    assert (row.reached, row.seeds) == (2, 2)


def test_a_loss_is_reached_from_above(tmp_path: Path) -> None:
    tiny_run(tmp_path, "fedapm", 1, [[0.1]] * 4, losses=[2.0, 0.7, 0.5, 0.1])
    assert rows_of(tmp_path, Target(TRAIN_LOSS, 0.5, chosen=False))["Fedapm"].rounds.values == {1: 2}
    assert rows_of(tmp_path, Target(TRAIN_LOSS, 3.0, chosen=False))["Fedapm"].rounds.values == {1: 0}


def test_seeds_that_do_not_get_there_are_counted_and_left_out_of_the_mean(tmp_path: Path) -> None:
    tiny_run(tmp_path / "1", "fedapm", 1, [[0.1], [0.7]])
    tiny_run(tmp_path / "2", "fedapm", 2, [[0.1], [0.5]])
    tiny_run(tmp_path / "3", "fedavg", 1, [[0.1], [0.2]])
    rows = rows_of(tmp_path, Target(ACCURACY, 0.6, chosen=False))
    assert list(rows) == ["Fedapm", "Fedavg"]
    assert (rows["Fedapm"].reached, rows["Fedapm"].seeds, rows["Fedapm"].rounds_text) == (1, 2, "1")
    assert (rows["Fedavg"].reached, rows["Fedavg"].rounds_text, rows["Fedavg"].megabytes.mean) == (0, "–", None)


def test_more_seeds_come_before_fewer_rounds(tmp_path: Path) -> None:
    for seed, last in ((1, 0.9), (2, 0.9)):
        tiny_run(tmp_path / "slow" / str(seed), "fedavg", seed, [[0.1], [0.2], [last]])
    for seed, last in ((1, 0.9), (2, 0.2)):
        tiny_run(tmp_path / "quick" / str(seed), "fedapm", seed, [[0.1], [last], [last]])
    assert list(rows_of(tmp_path, Target(ACCURACY, 0.8, chosen=False))) == ["Fedavg", "Fedapm"]


def test_without_targets_a_level_is_chosen_that_half_of_the_methods_reach(tmp_path: Path) -> None:
    for name, seed, best, loss in (
        ("fedapm", 1, 0.759, 0.301),
        ("fedapm", 2, 0.8, 0.2),
        ("fedavg", 1, 0.6283, 0.5121),
        ("fedavg", 2, 0.7, 0.4),
        ("local", 1, 0.5, 0.9),
    ):
        tiny_run(tmp_path / name / str(seed), name, seed, [[0.1], [best], [0.3]], losses=[2.3, loss, 1.0])
    targets = choose_targets(find_runs(tmp_path), (TRAIN_LOSS, ACCURACY))
    assert targets == [Target(TRAIN_LOSS, 0.52, chosen=True), Target(ACCURACY, 0.62, chosen=True)]
    assert [target.title for target in targets] == ["Training loss 0.52", "Accuracy 62%"]
    for target in targets:
        rows = rows_of(tmp_path, target)
        assert [row.reached for row in rows.values()] == [2, 2, 0]


@pytest.mark.parametrize(("level", "loss"), [(0.9999, 0.00012345), (1.0, 123.4), (0.05, 9.99), (0.62, 0.3), (0.0, 0.0)])
def test_the_chosen_level_is_reached_whatever_its_size(tmp_path: Path, level: float, loss: float) -> None:
    tiny_run(tmp_path, "fedapm", 1, [[0.0], [level]], losses=[200.0, loss])
    runs = find_runs(tmp_path)
    for target in choose_targets(runs, (TRAIN_LOSS, ACCURACY)):
        (table,), _ = target_tables(runs, [target])
        assert table.rows[0].reached == 1
        assert float(f"{target.level:.2g}") == target.level


def test_a_comparison_says_what_it_wants(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    wanted = {"targets": {"accuracy": 0.7, "train_loss": 0.9, "speed": 3}}
    (tmp_path / "compare.json").write_text(json.dumps(wanted), encoding="utf-8")
    page = page_of(tmp_path)
    check_markup(page)
    words = words_of(page)
    assert "Accuracy 70%" in words
    assert "Training loss 0.9" in words
    assert "those given to the comparison" in words
    assert "No run has a metric called speed" in words
    assert "3 of 3" in words
    assert "0 of 3" in words
    assert "chosen from these runs" not in words


def test_chosen_targets_are_said_to_be_that(compared: Shown) -> None:
    assert "chosen from these runs" in compared.words
    assert "rounds apart" not in compared.words


def test_a_single_method_has_targets_only_if_it_was_given_some(single: Shown, tmp_path: Path) -> None:
    assert "to a target" not in single.words
    write_fake(tmp_path, COMPARISON[0])
    (tmp_path / "compare.json").write_text('{"targets": {"accuracy": 0.5}}', encoding="utf-8")
    assert "Accuracy 50%" in words_of(page_of(tmp_path))


def test_evaluations_far_apart_are_mentioned(tmp_path: Path) -> None:
    for name in ("fedapm", "fedavg"):
        tiny_run(tmp_path / name, name, 1, [[0.1 * i] for i in range(8)], every=3)
    assert longest_gap(find_runs(tmp_path)) == 3
    words = words_of(page_of(tmp_path))
    assert "evaluated up to 3 rounds apart" in words
    assert "up to 2 rounds earlier" in words


@pytest.mark.parametrize("content", ["{}", '{"targets": null}', '{"targets": {}, "tuned": null}'])
def test_a_comparison_without_targets(tmp_path: Path, content: str) -> None:
    (tmp_path / "compare.json").write_text(content, encoding="utf-8")
    assert read_targets(tmp_path) == {}


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        ("{", "not valid JSON"),
        ("[]", "JSON object"),
        ('{"targets": [0.5]}', "'targets'"),
        ('{"targets": {"accuracy": "high"}}', "'accuracy'"),
        ('{"targets": {"accuracy": NaN}}', "'accuracy'"),
        ('{"targets": {"accuracy": true}}', "'accuracy'"),
    ],
)
def test_a_damaged_comparison_file_is_named(tmp_path: Path, content: str, mention: str) -> None:
    (tmp_path / "compare.json").write_text(content, encoding="utf-8")
    with pytest.raises(FedapmError, match=mention) as caught:
        read_targets(tmp_path)
    assert "compare.json" in str(caught.value)
    assert "\n" not in str(caught.value)
