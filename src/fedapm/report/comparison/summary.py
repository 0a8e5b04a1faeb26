"""The comparison in numbers: one row for each method and model, averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedapm.report.comparison.columns import ACCURACY, BEST_ROUND, COLUMNS, LAST_ROUND, TEST_LOSS, Column, Estimate
from fedapm.report.comparison.series import Series, all_series, best_score, group_runs, same_data, score, sent_bytes
from fedapm.report.evaluated_on import JudgedBy, judged_by
from fedapm.report.numbers import finite
from fedapm.report.significance import clear_best
from fedapm.runs.records import Run

__all__ = [
    "ACCURACY",
    "BEST_ROUND",
    "COLUMNS",
    "LAST_ROUND",
    "TEST_LOSS",
    "Column",
    "Estimate",
    "SummaryRow",
    "best_round_columns",
    "filled_columns",
    "main_column",
    "summary_table",
]


@dataclass(frozen=True)
class SummaryRow:
    """One model of one method at its last evaluated round; scores are shares of one, sizes in 10⁶ bytes."""

    label: str
    method: str
    view: str
    seeds: tuple[int, ...]
    whole: bool
    """Whether every run of the method went through; if not, the row is never marked as best."""
    clients: int
    auc_clients: tuple[int, ...]
    """How many clients have an AUC, for each seed."""
    judged_by: JudgedBy
    """Which data the scores are about; with validation data "test" in a name means that."""
    accuracy: Estimate
    f1: Estimate
    auc: Estimate
    worst10_accuracy: Estimate
    test_loss: Estimate
    worst10_test_loss: Estimate
    train_loss: Estimate
    drift: Estimate
    megabytes: Estimate
    best_round_accuracy: Estimate
    best_round_f1: Estimate
    best_round_auc: Estimate

    def cell(self, column: Column) -> Estimate:
        """The entry of a column."""
        entry: Estimate = getattr(self, column.field)
        return entry

    def worst10(self, column: Column) -> Estimate:
        """The mean over the worst tenth of the clients that goes with the main score."""
        return self.worst10_accuracy if column.field == ACCURACY.field else self.worst10_test_loss

    def as_dict(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        cells = {}
        for column in COLUMNS:
            cell = self.cell(column)
            by_seed = {str(seed): value for seed, value in cell.values.items()}
            cells[column.field] = {"mean": cell.mean, "std": cell.std, "best": cell.best, "seeds": by_seed}
        return {
            "label": self.label,
            "method": self.method,
            "view": self.view,
            "seeds": list(self.seeds),
            "complete": self.whole,
            "judged_by": self.judged_by,
            "clients": self.clients,
            "auc_clients": list(self.auc_clients),
        } | cells


def summary_table(runs: Sequence[Run]) -> list[SummaryRow]:
    """The rows of the comparison, the highest accuracy (or the lowest test loss) first.

    A cell is marked as best only where it is ahead of the runner-up by more than the noise between
    seeds, where its method lost no run on the way, and where all runs saw the same data.
    """
    series = all_series(group_runs(runs))
    rows = [_row(one) for one in series]
    if same_data([run for one in series for run in one.group.runs]):
        rows = _mark_best(rows)
    main = main_column(rows)
    return sorted(rows, key=lambda row: _rank(row.cell(main).mean, main))


def main_column(rows: Sequence[SummaryRow]) -> Column:
    """The score a comparison is about: accuracy, or test loss where there is no such thing as accuracy."""
    return ACCURACY if not rows or any(row.accuracy.values for row in rows) else TEST_LOSS


def filled_columns(rows: Sequence[SummaryRow]) -> list[Column]:
    """The columns of the last round worth showing: those with a value, and test loss only in place of accuracy."""
    instead = {"test_loss", "worst10_test_loss"} if main_column(rows) is ACCURACY else set()
    return [c for c in LAST_ROUND if c.field not in instead and any(row.cell(c).values for row in rows)]


def best_round_columns(rows: Sequence[SummaryRow]) -> list[Column]:
    """The columns of the best round that have a value."""
    return [c for c in BEST_ROUND if any(row.cell(c).values for row in rows)]


def _row(series: Series) -> SummaryRow:
    runs = [run for run in series.group.runs if series.evaluations(run)]
    last = {run.seed: series.last(run) for run in runs}

    def scores(metric: str, statistic: str = "mean") -> Estimate:
        return Estimate.of({seed: score(evaluation, metric, statistic) for seed, evaluation in last.items()})

    def best(metric: str) -> Estimate:
        return Estimate.of({run.seed: best_score(series, run, metric) for run in runs})

    return SummaryRow(
        label=series.name,
        method=series.group.method,
        view=series.view,
        seeds=tuple(last),
        whole=series.group.whole,
        clients=max(len(run.info["clients"]) for run in runs),
        auc_clients=tuple(int(n) for e in last.values() if (n := score(e, "auc", "clients")) is not None),
        judged_by=judged_by(runs),
        accuracy=scores("accuracy"),
        f1=scores("f1"),
        auc=scores("auc"),
        worst10_accuracy=scores("accuracy", "worst10"),
        test_loss=scores("test_loss"),
        worst10_test_loss=scores("test_loss", "worst10"),
        train_loss=scores("train_loss"),
        drift=Estimate.of({run.seed: _last_drift(run) for run in runs}),
        megabytes=Estimate.of({run.seed: sent_bytes(run.rounds[-1]) / 1e6 for run in runs}),
        best_round_accuracy=best("accuracy"),
        best_round_f1=best("f1"),
        best_round_auc=best("auc"),
    )


def _last_drift(run: Run) -> float | None:
    end = run.evaluated[-1]["round"]
    found = [finite(row.get("drift")) for row in run.rounds if row["round"] <= end]
    return next((value for value in reversed(found) if value is not None), None)


def _mark_best(rows: list[SummaryRow]) -> list[SummaryRow]:
    for column in COLUMNS:
        best = clear_best([_contending(row, column) for row in rows], column.higher_is_better)
        if best is not None and rows[best].whole:
            marked: dict[str, Any] = {column.field: replace(rows[best].cell(column), best=True)}
            rows[best] = replace(rows[best], **marked)
    return rows


def _contending(row: SummaryRow, column: Column) -> Mapping[int, float]:
    """A method that sends nothing is not the best at sending little: it does not take part."""
    values = row.cell(column).values
    return {} if column.field == "megabytes" and not any(values.values()) else values


def _rank(mean: float | None, column: Column) -> float:
    if mean is None:
        return float("inf")
    return -mean if column.higher_is_better else mean
