"""Every method beside the best one and beside FedAPM, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedapm.report.comparison.columns import Column
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.significance import Difference, paired_difference

OURS = "fedapm"
"""The id of the method that gets a column of its own."""


@dataclass(frozen=True)
class Against:
    """The main score of every other model minus that of one; no difference where no seed is common."""

    reference: str
    is_best: bool
    differences: dict[str, Difference | None]

    def only_one_seed(self) -> bool:
        """Whether nothing here says anything about chance."""
        return all(pair is None or pair.low is None for pair in self.differences.values())


def against_references(rows: Sequence[SummaryRow], main: Column) -> list[Against]:
    """Everything against the best model, then against FedAPM if that is another one.

    The rows come in the order of the comparison, the best first.
    """
    scored = [row for row in rows if row.cell(main).values]
    if len(scored) < 2:
        return []
    best = scored[0]
    ours = next((row for row in scored if row.method == OURS), best)
    references = [best] if ours is best else [best, ours]
    return [_against(reference, scored, main, reference is best) for reference in references]


def difference_text(difference: Difference, main: Column) -> str:
    """The mean difference with its sign."""
    return main.write_difference(difference.mean)


def interval_text(difference: Difference, main: Column) -> str:
    """The interval, or nothing where there is none."""
    if difference.low is None or difference.high is None:
        return ""
    return f"{main.write_difference(difference.low)} to {main.write_difference(difference.high)}"


def _against(reference: SummaryRow, rows: Sequence[SummaryRow], main: Column, is_best: bool) -> Against:
    values = reference.cell(main).values
    differences = {row.label: paired_difference(row.cell(main).values, values) for row in rows if row is not reference}
    return Against(reference.label, is_best, differences)
