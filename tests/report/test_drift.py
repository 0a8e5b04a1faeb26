"""Drift at the end: which rounds it is averaged over, and who has none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedapm.report.comparison.drift import FinalDrifts, final_drifts
from fedapm.report.comparison.sections.curves import drift_bars
from fedapm.report.comparison.series import group_runs
from fedapm.report.results import Results
from fedapm.runs.records import find_runs
from tests.report.fake_runs import COMPARISON, Fake, tiny_run, write_comparison
from tests.report.pages import Shown


def drifts_of(folder: Path) -> FinalDrifts:
    groups = group_runs(find_runs(folder))
    found = final_drifts(groups, {group.label: group.label for group in groups})
    assert found is not None
    return found


def bars_of(folder: Path) -> str:
    drift = drift_bars(Results.of(find_runs(folder)))
    assert drift is not None
    return str(drift["figure"].svg)


@pytest.mark.parametrize(("rounds", "window"), [(3, 3), (5, 5), (30, 5), (100, 10), (101, 11)])
def test_the_last_tenth_and_at_least_five_rounds(tmp_path: Path, rounds: int, window: int) -> None:
    tiny_run(tmp_path, "fedapm", 1, [[0.5]] * (rounds + 1))
    found = drifts_of(tmp_path)
    expected = 0.5 * sum(range(rounds - window + 1, rounds + 1)) / window
    assert found.methods[0].drift.values == pytest.approx({1: expected})
    assert found.rounds == str(window)


def test_rounds_without_a_finite_drift_are_left_out(tmp_path: Path) -> None:
    path = tiny_run(tmp_path, "fedapm", 1, [[0.5]] * 7)
    rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    rows[-1]["drift"], rows[-2]["drift"] = None, None
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert drifts_of(tmp_path).methods[0].drift.values == pytest.approx({1: 0.5 * (2 + 3 + 4) / 3})


def test_methods_without_drift_are_named(compared: Shown) -> None:
    found = drifts_of(compared.folder)
    assert [entry.label for entry in found.methods] == ["FedAPM", "FedAvg"]
    assert found.without == ["Local"]
    assert "Mean drift of the last 5 rounds; whiskers" in compared.words
    assert "Local has no drift" in compared.words
    assert "log scale" not in compared.page.split('aria-label="Drift at the end', 1)[1].split("</svg>", 1)[0]


def test_values_far_apart_are_on_a_log_scale(tmp_path: Path) -> None:
    write_comparison(tmp_path, (COMPARISON[0], replace(COMPARISON[1], drift=90.0)))
    assert "log scale" in bars_of(tmp_path)


def test_one_bar_is_no_figure(single: Shown) -> None:
    assert "drift at the end" not in single.page


def test_no_drift_at_all_and_a_drift_of_zero(tmp_path: Path) -> None:
    write_comparison(tmp_path / "zero", (Fake("a", "A", drift=0.0), Fake("b", "B", drift=2.0)), seeds=(1, 2))
    assert "Drift at the end of training: A 0, B 1.08." in bars_of(tmp_path / "zero")
    groups = group_runs(find_runs(write_comparison(tmp_path / "none", (Fake("a", "A", drift=None),))))
    assert final_drifts(groups, {"A": "A"}) is None
