"""How long it takes to reach a level: rounds and megabytes, seed by seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import pairwise
from pathlib import Path

from fedapm.errors import FedapmError
from fedapm.report.comparison.columns import Column, Estimate
from fedapm.report.comparison.series import Series, all_series, best_score, group_runs, score, sent_bytes, tidy
from fedapm.report.numbers import finite, fixed, tick
from fedapm.runs.files import read_json
from fedapm.runs.layout import COMPARE_INFO
from fedapm.runs.records import Run

LOSSES = frozenset({"train_loss", "test_loss"})
TITLES = {"accuracy": "Accuracy", "f1": "F1", "auc": "AUC", "train_loss": "Training loss", "test_loss": "Test loss"}
SENT = Column("megabytes", "Sent", False, "MB")


@dataclass(frozen=True)
class Target:
    """A level of a score; a loss is reached from above, everything else from below."""

    metric: str
    level: float
    chosen: bool
    """Whether it was picked from the very runs it is used on, because nobody named one."""

    @property
    def rises(self) -> bool:
        """Whether higher is better."""
        return self.metric not in LOSSES

    @property
    def title(self) -> str:
        """The level in words."""
        name = TITLES.get(self.metric, tidy(self.metric))
        share = self.metric in {"accuracy", "f1", "auc"}
        return f"{name} {tick(100 * self.level) + '%' if share else tick(self.level)}"

    def reached(self, value: float) -> bool:
        """Whether a value is at the level or beyond it."""
        return value >= self.level if self.rises else value <= self.level


@dataclass(frozen=True)
class TargetRow:
    """When one model of one method is at the target; the estimates hold only the seeds that get there."""

    label: str
    whole: bool
    rounds: Estimate
    megabytes: Estimate
    seeds: int

    @property
    def reached(self) -> int:
        """How many seeds get there."""
        return len(self.rounds.values)

    @property
    def rounds_text(self) -> str:
        """The mean round, whole where there is one seed."""
        mean = self.rounds.mean
        return "–" if mean is None else fixed(mean, 1 if self.reached > 1 else 0)

    @property
    def spread_text(self) -> str:
        """The spread of the round over seeds, or nothing."""
        return "" if self.rounds.std is None else f"± {fixed(self.rounds.std, 1)}"


@dataclass(frozen=True)
class TargetTable:
    """A target and when each method is there, the quickest first."""

    target: Target
    rows: list[TargetRow]


def read_targets(folder: Path) -> list[Target]:
    """The targets that the comparison in a folder was given; none where it says nothing about them."""
    path = folder / COMPARE_INFO
    if not path.is_file():
        return []
    found = read_json(path).get("targets") or {}
    if not isinstance(found, dict):
        raise FedapmError(
            f"'targets' in {path} should hold levels by the name of a score, such as {{\"accuracy\": 0.6}}."
        )
    for name, level in found.items():
        if finite(level) is None:
            raise FedapmError(f"the target {name!r} in {path} is {level!r}; give a number.")
    return [Target(name, float(level), chosen=False) for name, level in found.items()]


def choose_targets(runs: Sequence[Run], metrics: Sequence[str]) -> list[Target]:
    """For each score the level that half of the models reach in all their seeds, with two digits."""
    series = all_series(group_runs(runs))
    found = []
    for metric in metrics:
        rises = metric not in LOSSES
        levels = [level for one in series if (level := _common_level(one, metric, rises)) is not None]
        if levels:
            found.append(Target(metric, _outwards(statistics.median(levels), rises), chosen=True))
    return found


def target_tables(runs: Sequence[Run], targets: Sequence[Target]) -> tuple[list[TargetTable], list[str]]:
    """When each model is at each target, and the targets for scores that no run has."""
    series = all_series(group_runs(runs))
    tables, unknown = [], []
    for target in targets:
        rows = [row for one in series if (row := _row(one, target)) is not None]
        if rows:
            tables.append(TargetTable(target, sorted(rows, key=_quickest)))
        else:
            unknown.append(tidy(target.metric))
    return tables, unknown


def longest_gap(runs: Sequence[Run]) -> int:
    """The most rounds between two evaluations."""
    gaps = [1]
    for run in runs:
        rounds = [int(row["round"]) for row in run.evaluated]
        gaps += [after - before for before, after in pairwise(rounds)]
    return max(gaps)


def _row(series: Series, target: Target) -> TargetRow | None:
    runs = [run for run in series.group.runs if best_score(series, run, target.metric) is not None]
    if not runs:
        return None
    first = {run.seed: _first_round(series, run, target) for run in runs}
    return TargetRow(
        label=series.name,
        whole=series.group.whole,
        rounds=Estimate.of(first),
        megabytes=Estimate.of({run.seed: _sent_until(run, first[run.seed]) for run in runs}),
        seeds=len(runs),
    )


def _first_round(series: Series, run: Run, target: Target) -> int | None:
    for number, evaluation in series.evaluations(run):
        value = score(evaluation, target.metric)
        if value is not None and target.reached(value):
            return int(number)
    return None


def _sent_until(run: Run, number: int | None) -> float | None:
    return next((sent_bytes(row) / 1e6 for row in run.rounds if row["round"] == number), None)


def _common_level(series: Series, metric: str, rises: bool) -> float | None:
    """What every seed of a model reaches in some round."""
    best = [best_score(series, run, metric, rises) for run in series.group.runs]
    there = [value for value in best if value is not None]
    return (min if rises else max)(there) if there else None


def _outwards(value: float, rises: bool) -> float:
    """Two digits of a number, on the side where the level is still reached."""
    exact = Decimal(repr(value))
    if not exact:
        return value
    digits = Decimal(1).scaleb(exact.adjusted() - 1)
    return float(exact.quantize(digits, rounding=ROUND_FLOOR if rises else ROUND_CEILING))


def _quickest(row: TargetRow) -> tuple[float, float, str]:
    return (-row.reached / row.seeds, row.rounds.mean or 0.0, row.label)
