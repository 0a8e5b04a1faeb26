"""The columns of the comparison, and how their numbers are written."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedapm.report import numbers
from fedapm.report.metrics import BUILT_IN, MAIN, MetricInfo
from fedapm.report.numbers import lower_first


@dataclass(frozen=True)
class Estimate:
    """A quantity in each seed, and whether it is the clear best of its column."""

    values: Mapping[int, float]
    best: bool = False

    @classmethod
    def of(cls, values: Mapping[int, float | None]) -> Estimate:
        """The seeds that have a value."""
        return cls({seed: value for seed, value in values.items() if value is not None})

    @property
    def mean(self) -> float | None:
        """The mean over seeds, None without any."""
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds, None with fewer than two."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Column:
    """What a column of the table holds and how to write it."""

    field: str
    title: str
    higher_is_better: bool
    unit: str = ""
    metric: str = ""
    """The metric it is about, if any."""
    statistic: Literal["mean", "worst10", "best"] = "mean"
    """Over clients in the last round, over the worst tenth of them, or over clients in the best round."""

    @property
    def percentage(self) -> bool:
        """Whether values are shares of one."""
        return self.unit == "%"

    def write(self, value: float) -> str:
        """One value without its unit."""
        return numbers.percent(value) if self.percentage else numbers.plain(value)

    def write_difference(self, value: float) -> str:
        """A difference between two values, with its sign."""
        return numbers.signed(self.write(value))

    def mean_text(self, cell: Estimate) -> str:
        """The mean, or a dash."""
        return "–" if cell.mean is None else self.write(cell.mean)

    def exact(self, cell: Estimate) -> str:
        """Every seed with all its digits, for a tooltip."""
        factor = 100.0 if self.percentage else 1.0
        seeds = ", ".join(f"seed {seed}: {factor * value:.10g}" for seed, value in sorted(cell.values.items()))
        return f"{self.title}{', ' + self.unit if self.unit else ''}; {seeds}"

    def amount(self, cell: Estimate) -> str:
        """The mean within a sentence."""
        return self.mean_text(cell) + ("%" if self.percentage else "")

    def std_text(self, cell: Estimate) -> str:
        """The spread, or nothing where there is one seed or nothing random: bytes are often exact."""
        if cell.mean is None or cell.std is None or (self.field == "megabytes" and cell.std == 0):
            return ""
        if self.percentage:
            return f"± {numbers.percent(cell.std)}"
        return f"± {numbers.in_scale_of(cell.std, cell.mean)}"


WORST, BEST = "worst10_", "best_round_"
DRIFT = Column("drift", "Drift", False)
SENT = Column("megabytes", "Sent", False, "MB")


def metric_column(metric: MetricInfo) -> Column:
    """The mean over clients in the last round."""
    return Column(metric.name, metric.title, metric.higher_is_better, metric.unit, metric.name)


def table_columns(metrics: Sequence[MetricInfo]) -> tuple[Column, ...]:
    """Everything a table may hold, in order.

    First what the last evaluated round says: scores, losses, metrics that are not built in, drift and traffic. Then
    the best round of each score, picked with the test data, which is the paper's way of reporting.
    """
    columns: list[Column] = []
    built_in = [metric for metric in metrics if metric.name in BUILT_IN]
    for higher_is_better, worst_title in ((True, "Worst 10%"), (False, "Worst 10% loss")):
        scores = [m for m in built_in if m.data == "test" and m.higher_is_better is higher_is_better]
        columns += [metric_column(metric) for metric in scores]
        columns += [_worst(metric, worst_title) for metric in scores if metric.name in MAIN]
    columns += [metric_column(metric) for metric in built_in if metric.data != "test"]
    columns += [metric_column(metric) for metric in metrics if metric.name not in BUILT_IN]
    best = [_best(metric) for metric in metrics if metric.data == "test" and metric.higher_is_better]
    return (*columns, DRIFT, SENT, *best)


def plainly_titled(column: Column) -> Column:
    """A column of the best round under the title its score has, for a table that is about nothing else."""
    title = column.title.removeprefix("Best ")
    return replace(column, title=title[:1].upper() + title[1:])


def _worst(metric: MetricInfo, title: str) -> Column:
    return replace(metric_column(metric), field=WORST + metric.name, title=title, statistic="worst10")


def _best(metric: MetricInfo) -> Column:
    title = f"Best {lower_first(metric.title)}"
    return replace(metric_column(metric), field=BEST + metric.name, title=title, statistic="best")
