"""The columns of the comparison, and how their numbers are written."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedapm.report import numbers


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
LAST_ROUND = (
    ACCURACY,
    Column("f1", "F1", True, "%"),
    Column("auc", "AUC", True, "%"),
    Column("worst10_accuracy", "Worst 10%", True, "%"),
    TEST_LOSS,
    Column("worst10_test_loss", "Worst 10% loss", False),
    Column("train_loss", "Training loss", False),
    Column("drift", "Drift", False),
    Column("megabytes", "Sent", False, "MB"),
)
"""What the last evaluated round says."""
BEST_ROUND = (
    Column("best_round_accuracy", "Best accuracy", True, "%"),
    Column("best_round_f1", "Best F1", True, "%"),
    Column("best_round_auc", "Best AUC", True, "%"),
)
"""What the best round says, picked with the test data: the paper's way of reporting."""
COLUMNS = (*LAST_ROUND, *BEST_ROUND)


def plainly_titled(column: Column) -> Column:
    """A column of the best round under the title its score has, for a table that is about nothing else."""
    same = next(one for one in LAST_ROUND if one.field == column.field.removeprefix("best_round_"))
    return replace(column, title=same.title)
