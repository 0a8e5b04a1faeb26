"""Who gains and who loses against training alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedapm.report.comparison.columns import metric_column
from fedapm.report.comparison.sections.clients import ClientScores, client_table
from fedapm.report.comparison.series import all_series, group_runs
from fedapm.runs.records import find_runs
from tests.report.fake_runs import ACCURACY as METRIC
from tests.report.fake_runs import tiny_run

ACCURACY = metric_column(METRIC)


def table_of(folder: Path) -> ClientScores:
    found = client_table(all_series(group_runs(find_runs(folder))), ACCURACY)
    assert found is not None
    return found


def test_counts_are_of_the_same_client_in_the_same_seed(tmp_path: Path) -> None:
    tiny_run(tmp_path / "l1", "local", 1, [[0.9, 0.5, 0.7]])
    tiny_run(tmp_path / "l2", "local", 2, [[0.7, 0.5, 0.7]])
    tiny_run(tmp_path / "a1", "fedavg", 1, [[0.8, 0.6, 0.7]])
    tiny_run(tmp_path / "a2", "fedavg", 2, [[0.8, 0.6, 0.9]])
    tiny_run(tmp_path / "a3", "fedavg", 3, [[0.0, 0.0, 0.0]])
    table = table_of(tmp_path)
    assert table.ids == ["1", "2", "0"]
    (row,) = table.rows
    against = row.against_alone
    assert against is not None
    assert (against.better, against.equal, against.worse) == (2.0, 0.5, 0.5)
    assert against.gains == pytest.approx([0.1, 0.1, 0.0])
    assert against.mean == pytest.approx(0.2 / 3)
    assert against.least == pytest.approx(0.0)
    assert against.seeds == 2


def test_without_local_runs_there_are_only_scores(tmp_path: Path) -> None:
    tiny_run(tmp_path / "a", "fedavg", 1, [[0.8, 0.6]])
    table = table_of(tmp_path)
    assert table.alone is None
    assert table.rows[0].against_alone is None
    assert table.rows[0].scores == [0.6, 0.8]


def test_other_clients_are_left_out_and_named(tmp_path: Path) -> None:
    tiny_run(tmp_path / "a", "fedapm", 1, [[0.8, 0.6]])
    tiny_run(tmp_path / "l", "local", 1, [[0.8, 0.6, 0.7]])
    table = table_of(tmp_path)
    assert table.alone is None
    assert table.unmatched == ["Local"]


def test_clients_that_change_with_the_seed_are_noticed(tmp_path: Path) -> None:
    tiny_run(tmp_path / "a1", "fedavg", 1, [[0.8]])
    tiny_run(tmp_path / "a2", "fedavg", 2, [[0.8]], clients=[{"id": "0", "train": 99, "test": 9, "classes": 3}])
    assert not table_of(tmp_path).same_clients_each_seed
