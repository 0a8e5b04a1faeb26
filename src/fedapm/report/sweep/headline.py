"""What a sweep shows, in a sentence or two, and no more than that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedapm.report.comparison.columns import Column
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.numbers import counted, listed, lower_first
from fedapm.report.significance import paired_difference
from fedapm.report.sweep.runs import Point, Sweep

MOST_RANGES = 4


@dataclass(frozen=True)
class Result:
    """One model at one point, with its mean."""

    point: Point
    row: SummaryRow
    mean: float

    @property
    def complete(self) -> bool:
        """Whether all its seeds finished; a result of those that did looks too good."""
        return self.point.state == "complete"


def sweep_sentences(sweep: Sweep, main: Column) -> list[str]:
    """Where the main score is best and by how much, and how far it moves with the values."""
    results = [
        Result(point, row, mean)
        for point in sweep.points
        if point.counts
        for row in point.rows
        if (mean := row.cell(main).mean) is not None
    ]
    if not results:
        return ["No run finished, so nothing is known about the values."]
    results.sort(key=lambda result: -result.mean if main.higher_is_better else result.mean)
    return [_best(results, main), *_ranges(results, main)]


def _best(results: Sequence[Result], main: Column) -> str:
    extreme, name = ("highest" if main.higher_is_better else "lowest"), lower_first(main.title)
    first = results[0]
    if len(results) == 1:
        return f"{_who(first)} has a mean {name} of {_amount(first, main)}; there is nothing to compare it with."
    second = results[1]
    if math.isclose(first.mean, second.mean, rel_tol=1e-12):
        return f"{_who(first)} and {_who(second)} share the {extreme} mean {name}, {_amount(first, main)}."
    order = (
        f"The {extreme} mean {name} is that of {_who(first)}, {_amount(first, main)}; next is {_who(second)} "
        f"with {_amount(second, main)}."
    )
    if not (first.complete and second.complete):
        return f"{order} Not every seed of the two finished, so this is not conclusive."
    difference = paired_difference(first.row.cell(main).values, second.row.cell(main).values)
    if difference is None or difference.low is None:
        return f"{order} One seed does not show whether this is chance."
    if difference.clear:
        return f"{order} The difference is significant over {counted(difference.seeds, 'seed')}."
    return f"{order} The difference is not significant: these runs do not separate the two."


def _ranges(results: Sequence[Result], main: Column) -> list[str]:
    """How far each model's score moves over the values; nothing where there are too many to read."""
    models: dict[str, list[Result]] = {}
    for result in results:
        models.setdefault(result.row.label, []).append(result)
    moving = {label: members for label, members in sorted(models.items()) if len(members) > 1}
    if not moving or len(moving) > MOST_RANGES:
        return []
    unit = "%" if main.percentage else ""
    ranges = [
        f"from {main.write(min(r.mean for r in members))}{unit} to {main.write(max(r.mean for r in members))}{unit} "
        f"for {label}"
        for label, members in moving.items()
    ]
    return [f"Over the values tried, the mean {lower_first(main.title)} goes {listed(ranges)}."]


def _who(result: Result) -> str:
    return f"{result.row.label} at {result.point.place}" if result.point.values else result.row.label


def _amount(result: Result, main: Column) -> str:
    return f"{main.write(result.mean)}{'%' if main.percentage else ''}"
