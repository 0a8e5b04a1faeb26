"""How many rounds and megabytes each method needs to reach a level."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import pairwise
from pathlib import Path

from fedapm.errors import FedapmError
from fedapm.report.comparison.columns import SENT, Estimate
from fedapm.report.comparison.series import Series, all_series, best_score, group_runs, score, sent_bytes, tidy
from fedapm.report.metrics import BUILT_IN, MetricInfo, metrics_of
from fedapm.report.numbers import finite, fixed, tick
from fedapm.report.page import Section
from fedapm.report.results import Results
from fedapm.runs.files import read_json
from fedapm.runs.layout import COMPARE_INFO
from fedapm.runs.records import Run


@dataclass(frozen=True)
class Target:
    """A level of a metric; a loss is reached from above, a score from below."""

    metric: MetricInfo
    level: float
    chosen: bool
    """Whether it was chosen from the runs it is used on, because none was given."""

    @property
    def title(self) -> str:
        """The level in words."""
        return f"{self.metric.title} {tick(100 * self.level) + '%' if self.metric.percentage else tick(self.level)}"

    def reached(self, value: float) -> bool:
        """Whether a value is at the level or beyond it."""
        return value >= self.level if self.metric.higher_is_better else value <= self.level


@dataclass(frozen=True)
class TargetRow:
    """When one model of one method is at the target; the estimates hold only the seeds that get there."""

    label: str
    complete: bool
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


def read_targets(folder: Path) -> dict[str, float]:
    """The levels that the comparison in a folder was given, by metric; none where it says nothing about them."""
    path = folder / COMPARE_INFO
    if not path.is_file():
        return {}
    levels = read_json(path).get("targets") or {}
    if not isinstance(levels, dict):
        raise FedapmError(
            f"'targets' in {path} should hold levels by the name of a score, such as {{\"accuracy\": 0.6}}."
        )
    for name, level in levels.items():
        if finite(level) is None:
            raise FedapmError(f"the target {name!r} in {path} is {level!r}; give a number.")
    return {str(name): float(level) for name, level in levels.items()}


def named_targets(runs: Sequence[Run], levels: Mapping[str, float]) -> list[Target]:
    """The targets for some levels by metric; a metric that nobody describes counts as a score."""
    metrics = {metric.name: metric for metric in metrics_of(runs)}
    return [Target(metrics.get(name, MetricInfo(name, tidy(name))), level, False) for name, level in levels.items()]


def choose_targets(runs: Sequence[Run], metrics: Sequence[MetricInfo]) -> list[Target]:
    """For each metric the level that half of the models reach in all their seeds, with two digits."""
    series = all_series(group_runs(runs))
    targets = []
    for metric in metrics:
        levels = [level for model in series if (level := _common_level(model, metric)) is not None]
        if levels:
            level = _outwards(statistics.median(levels), metric.higher_is_better)
            targets.append(Target(metric, level, chosen=True))
    return targets


def target_tables(runs: Sequence[Run], targets: Sequence[Target]) -> tuple[list[TargetTable], list[str]]:
    """When each model is at each target, and the targets for scores that no run has."""
    series = all_series(group_runs(runs))
    tables, unknown = [], []
    for target in targets:
        rows = [row for model in series if (row := _row(model, target)) is not None]
        if rows:
            tables.append(TargetTable(target, sorted(rows, key=_quickest)))
        else:
            unknown.append(target.metric.title)
    return tables, unknown


def longest_gap(runs: Sequence[Run]) -> int:
    """The most rounds between two evaluations."""
    gaps = [1]
    for run in runs:
        rounds = [int(row["round"]) for row in run.evaluated]
        gaps += [after - before for before, after in pairwise(rounds)]
    return max(gaps)


def _row(series: Series, target: Target) -> TargetRow | None:
    runs = [run for run in series.group.runs if best_score(series, run, target.metric.name) is not None]
    if not runs:
        return None
    first = {run.seed: _first_round(series, run, target) for run in runs}
    return TargetRow(
        label=series.name,
        complete=series.group.complete,
        rounds=Estimate.of(first),
        megabytes=Estimate.of({run.seed: _sent_until(run, first[run.seed]) for run in runs}),
        seeds=len(runs),
    )


def _first_round(series: Series, run: Run, target: Target) -> int | None:
    for number, evaluation in series.evaluations(run):
        value = score(evaluation, target.metric.name)
        if value is not None and target.reached(value):
            return int(number)
    return None


def _sent_until(run: Run, number: int | None) -> float | None:
    return next((sent_bytes(row) / 1e6 for row in run.rounds if row["round"] == number), None)


def _common_level(series: Series, metric: MetricInfo) -> float | None:
    """What every seed of a model reaches in some round."""
    best = [best_score(series, run, metric.name, metric.higher_is_better) for run in series.group.runs]
    reached = [value for value in best if value is not None]
    return (min if metric.higher_is_better else max)(reached) if reached else None


def _outwards(value: float, higher_is_better: bool) -> float:
    """Two digits of a number, on the side where the level is still reached."""
    exact = Decimal(repr(value))
    if not exact:
        return value
    digits = Decimal(1).scaleb(exact.adjusted() - 1)
    return float(exact.quantize(digits, rounding=ROUND_FLOOR if higher_is_better else ROUND_CEILING))


def _quickest(row: TargetRow) -> tuple[float, float, str]:
    return (-row.reached / row.seeds, row.rounds.mean or 0.0, row.label)


def section(results: Results, levels: Mapping[str, float]) -> Section | None:
    """The section; None for a single model without targets.

    Args:
        results: The comparison.
        levels: The targets it was given; without any, some are chosen from the runs.
    """
    targets = named_targets(results.runs, levels)
    if not targets and len(results.rows) > 1:
        names = {*BUILT_IN, results.main.field}
        targets = choose_targets(results.runs, [metric for metric in results.featured if metric.name in names])
    tables, unknown = target_tables(results.runs, targets)
    if not tables and not unknown:
        return None
    context = {
        "results": results,
        "tables": tables,
        "unknown": unknown,
        "chosen": not levels,
        "gap": longest_gap(results.runs),
        "sent": SENT,
    }
    return Section("targets", "Rounds and megabytes to a target", "targets.html.j2", context, link="Targets")
