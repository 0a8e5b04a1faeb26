"""A quantity as it went over rounds and over bytes, averaged over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedapm.report.comparison.series import Series, score, sent_bytes
from fedapm.report.metrics import MetricInfo
from fedapm.report.numbers import finite, lower_first, slug
from fedapm.runs.records import Run

Reading = Callable[[Series, Run], dict[int, float]]


@dataclass(frozen=True)
class Curve:
    """The mean over seeds, from the smallest to the largest seed, in the rounds all seeds have."""

    rounds: list[int]
    megabytes: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    seeds: int


@dataclass(frozen=True)
class Quantity:
    """Something to draw against rounds and bytes."""

    key: str
    title: str
    axis: str
    read: Reading
    percentage: bool = False
    per_view: bool = True


def of_evaluation(metric: str) -> Reading:
    """Read the mean over clients of a metric in each evaluated round."""

    def read(series: Series, run: Run) -> dict[int, float]:
        values = {number: score(evaluation, metric) for number, evaluation in series.evaluations(run)}
        return {number: value for number, value in values.items() if value is not None}

    return read


def of_round(value: Callable[[dict[str, Any]], Any]) -> Reading:
    """Read something that is recorded in every round, evaluated or not."""

    def read(_: Series, run: Run) -> dict[int, float]:
        values = {row["round"]: finite(value(row)) for row in run.rounds}
        return {number: value for number, value in values.items() if value is not None}

    return read


def of_metric(metric: MetricInfo) -> Quantity:
    """A metric as something to draw."""
    axis = lower_first(metric.title) + (f" ({metric.unit})" if metric.unit else "")
    return Quantity(slug(metric.name), metric.title, axis, of_evaluation(metric.name), metric.percentage)


OF_ROUNDS = (
    Quantity("drift", "Client drift", "drift ‖uᵢ − ū‖", of_round(lambda row: row.get("drift")), per_view=False),
    Quantity(
        "stationarity",
        "Distance from a stationary point",
        "norm of the residuals",
        of_round(lambda row: (row.get("stationarity") or {}).get("total")),
        per_view=False,
    ),
)


def curve(series: Series, quantity: Quantity) -> Curve | None:
    """One line of a figure, or None where no round has a value in all seeds."""
    read = [(run, quantity.read(series, run)) for run in series.group.runs]
    read = [(run, values) for run, values in read if values]
    if not read:
        return None
    rounds = sorted(set.intersection(*(set(values) for _, values in read)))
    if not rounds:
        return None
    sent = [{row["round"]: sent_bytes(row) / 1e6 for row in run.rounds} for run, _ in read]
    columns = [[values[number] for _, values in read] for number in rounds]
    return Curve(
        rounds=rounds,
        megabytes=[statistics.fmean(megabytes[number] for megabytes in sent) for number in rounds],
        mean=[statistics.fmean(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
        seeds=len(read),
    )
