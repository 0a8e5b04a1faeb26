"""What is seen in a sweep, in a sentence or two, and no more than the numbers say."""

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
    def whole(self) -> bool:
        """Whether all its seeds went through; a result of surviving seeds looks too good."""
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
        return ["No run went through, so there is nothing to say about the values."]
    results.sort(key=lambda result: -result.mean if main.higher_is_better else result.mean)
    return [_best(results, main), *_ranges(results, main)]


def _best(results: Sequence[Result], main: Column) -> str:
    quality, name = ("highest" if main.higher_is_better else "lowest"), lower_first(main.title)
    first = results[0]
    if len(results) == 1:
        return f"{_who(first)} has a mean {name} of {_amount(first, main)}; there is nothing to compare it with."
    second = results[1]
    if math.isclose(first.mean, second.mean, rel_tol=1e-12):
        return f"{_who(first)} and {_who(second)} share the {quality} mean {name}, {_amount(first, main)}."
    start = (
        f"The {quality} mean {name} is that of {_who(first)}, {_amount(first, main)}; next is {_who(second)} "
        f"with {_amount(second, main)}."
    )
    if not (first.whole and second.whole):
        return f"{start} Not every seed of the two went through, so this is no verdict."
    difference = paired_difference(first.row.cell(main).values, second.row.cell(main).values)
    if difference is None or difference.low is None:
        return f"{start} With one seed there is no telling this from chance."
    if difference.clear:
        return f"{start} The difference is more than the noise between {counted(difference.seeds, 'seed')}."
    return f"{start} That is within the noise between seeds: these runs do not tell the two apart."


def _ranges(results: Sequence[Result], main: Column) -> list[str]:
    """How far each model's score moves over the values; nothing where there are too many to read."""
    models: dict[str, list[Result]] = {}
    for result in results:
        models.setdefault(result.row.label, []).append(result)
    moving = {label: found for label, found in sorted(models.items()) if len(found) > 1}
    if not moving or len(moving) > MOST_RANGES:
        return []
    unit = "%" if main.percentage else ""
    told = [
        f"from {main.write(min(r.mean for r in found))}{unit} to {main.write(max(r.mean for r in found))}{unit} "
        f"for {label}"
        for label, found in moving.items()
    ]
    return [f"Over the values tried, the mean {lower_first(main.title)} goes {listed(told)}."]


def _who(result: Result) -> str:
    return f"{result.row.label} at {result.point.place}" if result.point.values else result.row.label


def _amount(result: Result, main: Column) -> str:
    return f"{main.write(result.mean)}{'%' if main.percentage else ''}"
