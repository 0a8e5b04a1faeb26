"""The summary on terminals of any width."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.fake_runs import COMPARISON, write_comparison, write_fake
from tests.report.pages import terminal_of

LAST = ["Accuracy, %", "F1, %", "AUC, %", "Worst 10%, %", "Training loss", "Drift", "Sent, MB"]
BEST = ["Best accuracy, %", "Best F1, %", "Best AUC, %"]


@pytest.mark.parametrize(("width", "last", "best"), [(300, 7, 3), (160, 7, 1), (140, 7, 0), (80, 4, 0)])
def test_columns_are_whole_and_the_best_round_goes_first(tmp_path: Path, width: int, last: int, best: int) -> None:
    table = terminal_of(write_comparison(tmp_path), width)
    headings = [heading.strip() for heading in table.split("┓", 1)[1].split("┡", 1)[0].split("┃")]
    assert [heading for heading in headings if heading] == ["method", *LAST[:last], *BEST[:best]]
    assert "…" not in table
    assert ("chosen with test data, so too optimistic" in table) == (best > 0)
    assert (f"{7 - last} more columns in a wider terminal" in table) == (last < 7)


def test_a_terminal_too_narrow_for_anything_still_shows_the_first_columns(tmp_path: Path) -> None:
    table = terminal_of(write_comparison(tmp_path), 20)
    assert "Accu" in table


def test_one_run_has_no_spread(tmp_path: Path) -> None:
    table = terminal_of(write_fake(tmp_path, COMPARISON[0]))
    assert "one seed" in table
    assert "±" not in table
