"""What every kind of page needs of its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from markupsafe import Markup

from fedapm.report.comparison.columns import Column, plainly_titled
from fedapm.report.comparison.series import Group, Series, all_series, group_runs, same_data
from fedapm.report.comparison.summary import (
    SummaryRow,
    best_round_columns,
    filled_columns,
    main_column,
    summary_table,
)
from fedapm.report.evaluated_on import EvaluatedOn, evaluated_on, wording
from fedapm.report.figures.style import Style, assign_styles, swatch
from fedapm.report.metrics import MetricInfo, featured, metrics_of
from fedapm.runs.records import Run


@dataclass(frozen=True)
class Results:
    """Runs by method with their numbers, and how they are titled and colored."""

    groups: Sequence[Group]
    rows: Sequence[SummaryRow]
    runs: Sequence[Run]
    """The runs that count."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Results:
        """The results of a comparison."""
        groups = group_runs(runs)
        return cls(groups, summary_table(runs), [run for group in groups for run in group.runs])

    @cached_property
    def series(self) -> list[Series]:
        """Every evaluated model."""
        return all_series(self.groups)

    @cached_property
    def every_run(self) -> list[Run]:
        """All runs, those that do not count among them."""
        return [run for group in self.groups for run in group.every_run]

    @cached_property
    def evaluated_on(self) -> EvaluatedOn:
        """Which data the scores are about."""
        return evaluated_on(self.runs)

    @cached_property
    def reword(self) -> Callable[[str], str]:
        """Turns a text about test data into one about the data of these runs."""
        return wording(self.evaluated_on)

    @cached_property
    def main(self) -> Column:
        """The score that the page is about."""
        return self._titled(main_column(self.rows))

    @cached_property
    def columns(self) -> list[Column]:
        """What the last round says."""
        return [self._titled(column) for column in filled_columns(self.rows)]

    @cached_property
    def best_columns(self) -> list[Column]:
        """What the best round says."""
        return [plainly_titled(column) for column in best_round_columns(self.rows)]

    @cached_property
    def featured(self) -> list[MetricInfo]:
        """The metrics worth a figure."""
        return featured(metrics_of(self.runs), self.main.field)

    @cached_property
    def styles(self) -> dict[str, Style]:
        """The color and marker of each model."""
        return assign_styles(self.series)

    @cached_property
    def swatches(self) -> dict[str, Markup]:
        """The same as small pictures for tables."""
        return {name: swatch(style) for name, style in self.styles.items()}

    @cached_property
    def by_name(self) -> dict[str, SummaryRow]:
        """The row of each model."""
        return {row.label: row for row in self.rows}

    @cached_property
    def several_seeds(self) -> bool:
        """Whether any row is a mean over seeds."""
        return any(len(row.seeds) > 1 for row in self.rows)

    @cached_property
    def comparable(self) -> bool:
        """Whether all runs saw the same data."""
        return same_data(self.runs)

    def _titled(self, column: Column) -> Column:
        return replace(column, title=self.reword(column.title))
