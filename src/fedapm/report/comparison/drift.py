"""How far clients are from the server's model when training ends, one number for each method and seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedapm.report.comparison.columns import Estimate
from fedapm.report.comparison.series import Group
from fedapm.report.numbers import finite, value_range
from fedapm.runs.records import Run

FEWEST = 5
"""Rounds to average over, where there are so many: one round's drift depends on who was selected."""


@dataclass(frozen=True)
class FinalDrift:
    """A method's drift, averaged over the last rounds of each seed."""

    label: str
    series: str
    """The name of the method's first model, whose style it has."""
    drift: Estimate


@dataclass(frozen=True)
class FinalDrifts:
    """All methods that have a drift, the names of those that have none, and over how many rounds it is."""

    methods: list[FinalDrift]
    without: list[str]
    rounds: str


def final_drifts(groups: Sequence[Group], names: dict[str, str]) -> FinalDrifts | None:
    """The drift at the end, None where no method has any; ``names`` has the first model of each method."""
    drifts = [
        FinalDrift(group.label, names[group.label], Estimate.of({run.seed: _final(run) for run in group.runs}))
        for group in groups
        if group.label in names
    ]
    known = [entry for entry in drifts if entry.drift.values]
    if not known:
        return None
    windows = [len(_last_rounds(run)) for group in groups if group.label in names for run in group.runs]
    without = [entry.label for entry in drifts if not entry.drift.values]
    return FinalDrifts(known, without, value_range([window for window in windows if window], " to "))


def _final(run: Run) -> float | None:
    values = [value for row in _last_rounds(run) if (value := finite(row.get("drift"))) is not None]
    return statistics.fmean(values) if values else None


def _last_rounds(run: Run) -> list[dict[str, object]]:
    """The last tenth of the rounds in which clients trained."""
    trained = [row for row in run.rounds if row["round"] > 0]
    return trained[-max(FEWEST, math.ceil(len(trained) / 10)) :]
