"""The comparison in numbers: one row for each method and model, averaged over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedapm.records import Run
from fedapm.report import numbers
from fedapm.report.noise import clear_best
from fedapm.report.numbers import finite
from fedapm.report.series import Series, all_series, group_runs, same_data, score, sent_bytes


@dataclass(frozen=True)
class Estimate:
    """A quantity in each seed, and whether it is the clear best of its column."""

    values: Mapping[int, float]
    best: bool = False

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

    def std_text(self, cell: Estimate) -> str:
        """The spread, or nothing where there is one seed or nothing random: bytes are often exact."""
        if cell.mean is None or cell.std is None or (self.field == "megabytes" and cell.std == 0):
            return ""
        if self.percentage:
            return f"± {numbers.percent(cell.std)}"
        return f"± {numbers.in_scale_of(cell.std, cell.mean)}"


ACCURACY = Column("accuracy", "Accuracy", True, "%")
TEST_LOSS = Column("test_loss", "Test loss", False)
COLUMNS = (
    ACCURACY,
    Column("best_round_accuracy", "Best round", True, "%"),
    Column("worst10_accuracy", "Worst 10%", True, "%"),
    Column("f1", "F1", True, "%"),
    Column("auc", "AUC", True, "%"),
    TEST_LOSS,
    Column("worst10_test_loss", "Worst 10% loss", False),
    Column("train_loss", "Training loss", False),
    Column("drift", "Drift", False),
    Column("megabytes", "Sent", False, "MB"),
)


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
    accuracy: Estimate
    best_round_accuracy: Estimate
    worst10_accuracy: Estimate
    f1: Estimate
    auc: Estimate
    test_loss: Estimate
    worst10_test_loss: Estimate
    train_loss: Estimate
    drift: Estimate
    megabytes: Estimate

    def cell(self, column: Column) -> Estimate:
        """The entry of a column."""
        entry: Estimate = getattr(self, column.field)
        return entry

    def worst10(self, column: Column) -> Estimate:
        """The mean over the worst tenth of the clients that goes with the main score."""
        return self.worst10_accuracy if column is ACCURACY else self.worst10_test_loss

    def as_dict(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        cells = {}
        for column in COLUMNS:
            cell = self.cell(column)
            by_seed = {str(seed): value for seed, value in cell.values.items()}
            cells[column.field] = {"mean": cell.mean, "std": cell.std, "best": cell.best, "seeds": by_seed}
        about = {"label": self.label, "method": self.method, "view": self.view, "seeds": list(self.seeds)}
        return about | {"complete": self.whole, "clients": self.clients, "auc_clients": list(self.auc_clients)} | cells


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
    """The columns worth showing: those with a value, and test loss only in place of accuracy."""
    instead = {"test_loss", "worst10_test_loss"} if main_column(rows) is ACCURACY else set()
    return [c for c in COLUMNS if c.field not in instead and any(row.cell(c).values for row in rows)]


def _row(series: Series) -> SummaryRow:
    runs = [run for run in series.group.runs if series.evaluations(run)]
    last = {run.seed: series.last(run) for run in runs}

    def scores(metric: str, statistic: str = "mean") -> Estimate:
        return _estimate({seed: score(evaluation, metric, statistic) for seed, evaluation in last.items()})

    return SummaryRow(
        label=series.name,
        method=series.group.method,
        view=series.view,
        seeds=tuple(last),
        whole=series.group.whole,
        clients=max(len(run.info["clients"]) for run in runs),
        auc_clients=tuple(int(n) for e in last.values() if (n := score(e, "auc", "clients")) is not None),
        accuracy=scores("accuracy"),
        best_round_accuracy=_estimate({run.seed: _best_accuracy(series, run) for run in runs}),
        worst10_accuracy=scores("accuracy", "worst10"),
        f1=scores("f1"),
        auc=scores("auc"),
        test_loss=scores("test_loss"),
        worst10_test_loss=scores("test_loss", "worst10"),
        train_loss=scores("train_loss"),
        drift=_estimate({run.seed: _last_drift(run) for run in runs}),
        megabytes=_estimate({run.seed: sent_bytes(run.rounds[-1]) / 1e6 for run in runs}),
    )


def _estimate(values: Mapping[int, float | None]) -> Estimate:
    return Estimate({seed: value for seed, value in values.items() if value is not None})


def _best_accuracy(series: Series, run: Run) -> float | None:
    found = [score(evaluation, "accuracy") for _, evaluation in series.evaluations(run)]
    return max((value for value in found if value is not None), default=None)


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
