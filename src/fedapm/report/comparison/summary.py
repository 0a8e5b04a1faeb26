"""The comparison in numbers: one row for each method and model, averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedapm.core.metrics import AUC
from fedapm.report.comparison.columns import DRIFT, SENT, WORST, Column, Estimate, table_columns
from fedapm.report.comparison.series import Series, all_series, best_score, group_runs, same_data, score, sent_bytes
from fedapm.report.evaluated_on import EvaluatedOn, evaluated_on
from fedapm.report.metrics import MAIN, MetricInfo, metrics_of
from fedapm.report.numbers import finite
from fedapm.report.significance import clear_best
from fedapm.runs.records import Run

NOTHING = Estimate({})


@dataclass(frozen=True)
class SummaryRow:
    """One model of one method at its last evaluated round; scores are shares of one, sizes in 10⁶ bytes."""

    label: str
    method: str
    view: str
    seeds: tuple[int, ...]
    complete: bool
    """Whether every run of the method finished; if not, the row is never marked as best."""
    clients: int
    """How many clients were evaluated."""
    population: int
    """How many there are."""
    auc_clients: tuple[int, ...]
    """How many clients have an AUC, for each seed."""
    evaluated_on: EvaluatedOn
    """Which data the scores are about; with validation data "test" in a name means that."""
    columns: tuple[Column, ...]
    """What the row has a cell for, in order."""
    cells: Mapping[str, Estimate]
    """The entry of each column by the column's field."""

    def cell(self, column: Column) -> Estimate:
        """The entry of a column; empty where the row has none."""
        return self.cells.get(column.field, NOTHING)

    def worst10(self, column: Column) -> Estimate:
        """The mean over the worst tenth of the clients that goes with the main score."""
        return self.cells.get(WORST + column.field, NOTHING)

    def as_dict(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        cells = {}
        for column in self.columns:
            cell = self.cell(column)
            by_seed = {str(seed): value for seed, value in cell.values.items()}
            cells[column.field] = {"mean": cell.mean, "std": cell.std, "best": cell.best, "seeds": by_seed}
        return {
            "label": self.label,
            "method": self.method,
            "view": self.view,
            "seeds": list(self.seeds),
            "complete": self.complete,
            "judged_by": self.evaluated_on,
            "clients": self.clients,
            "population": self.population,
            "auc_clients": list(self.auc_clients),
        } | cells


def summary_table(runs: Sequence[Run]) -> list[SummaryRow]:
    """The rows of the comparison, the highest accuracy (or the lowest test loss) first.

    A cell is marked as best only where it is significantly better than every other, where every run of its
    method finished, and where all runs saw the same data.

    Args:
        runs: The runs to compare, of one method or several.

    Returns:
        One row for each evaluated model of each method.
    """
    metrics = metrics_of(runs)
    series = [model for model in all_series(group_runs(runs)) if any(map(model.evaluations, model.group.runs))]
    rows = [_row(model, metrics) for model in series]
    if same_data([run for model in series for run in model.group.runs]):
        rows = _mark_best(rows)
    main = main_column(rows)
    return sorted(rows, key=lambda row: _rank(row.cell(main).mean, main))


def main_column(rows: Sequence[SummaryRow]) -> Column:
    """The score a comparison is about: accuracy, else test loss, else the first score that the rows have."""
    columns = {column.field: column for column in _columns(rows) or table_columns(metrics_of([]))}
    filled = [column.field for column in _filled(rows) if column.metric and column.statistic == "mean"]
    candidates = [name for name in MAIN if name in filled] or filled or [MAIN[-1] if rows else MAIN[0]]
    return columns[candidates[0]]


def filled_columns(rows: Sequence[SummaryRow]) -> list[Column]:
    """The columns of the last round worth showing: those with a value, and the loss only in place of a score."""
    score, loss = MAIN
    hidden = {loss} if main_column(rows).field == score else set()
    return [column for column in _filled(rows) if column.statistic != "best" and column.metric not in hidden]


def best_round_columns(rows: Sequence[SummaryRow]) -> list[Column]:
    """The columns of the best round that have a value."""
    return [column for column in _filled(rows) if column.statistic == "best"]


def _columns(rows: Sequence[SummaryRow]) -> list[Column]:
    return list(dict.fromkeys(column for row in rows for column in row.columns))


def _filled(rows: Sequence[SummaryRow]) -> list[Column]:
    return [column for column in _columns(rows) if any(row.cell(column).values for row in rows)]


def _row(series: Series, metrics: Sequence[MetricInfo]) -> SummaryRow:
    runs = [run for run in series.group.runs if series.evaluations(run)]
    columns = table_columns(metrics)
    last = {run.seed: series.last(run) for run in runs}
    return SummaryRow(
        label=series.name,
        method=series.group.method,
        view=series.view,
        seeds=tuple(last),
        complete=series.group.complete,
        clients=max(len(run.info["clients"]) for run in runs),
        population=max(run.population for run in runs),
        auc_clients=tuple(int(n) for e in last.values() if (n := score(e, AUC.name, "clients")) is not None),
        evaluated_on=evaluated_on(runs),
        columns=columns,
        cells={c.field: Estimate.of({run.seed: _value(c, series, run) for run in runs}) for c in columns},
    )


def _value(column: Column, series: Series, run: Run) -> float | None:
    """What a column says about one run."""
    if column == SENT:
        return sent_bytes(run.rounds[-1]) / 1e6
    if column == DRIFT:
        return last_drift(run)
    if column.statistic == "best":
        return best_score(series, run, column.metric, column.higher_is_better)
    return score(series.last(run), column.metric, column.statistic)


def last_drift(run: Run) -> float | None:
    """The drift at the last evaluated round, or at the last one before it that has one."""
    end = run.evaluated[-1]["round"]
    drifts = [finite(row.get("drift")) for row in run.rounds if row["round"] <= end]
    return next((value for value in reversed(drifts) if value is not None), None)


def _mark_best(rows: list[SummaryRow]) -> list[SummaryRow]:
    for column in _columns(rows):
        best = clear_best([_contending(row, column) for row in rows], column.higher_is_better)
        if best is not None and rows[best].complete:
            marked = replace(rows[best].cell(column), best=True)
            rows[best] = replace(rows[best], cells={**rows[best].cells, column.field: marked})
    return rows


def _contending(row: SummaryRow, column: Column) -> Mapping[int, float]:
    """A method that sends nothing does not compete for sending the least."""
    values = row.cell(column).values
    return {} if column == SENT and not any(values.values()) else values


def _rank(mean: float | None, column: Column) -> float:
    if mean is None:
        return float("inf")
    return -mean if column.higher_is_better else mean
