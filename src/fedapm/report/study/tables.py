"""A summary as tables: one for each case, cohort and split, with every method beside FedAPM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from fedapm.report.comparison.columns import Column, Estimate
from fedapm.report.significance import Difference, paired_difference
from fedapm.report.study.holm import holm, paired_p
from fedapm.report.study.lines import UNSPLIT, Line

OURS, AS_PUBLISHED, FEDALT = "fedapm", "fedapm-paper", "fedalt"
ACCURACY = Column("accuracy", "Accuracy", True, "%")
COLUMNS = (
    ACCURACY,
    Column("f1", "F1", True, "%"),
    Column("auc", "AUC", True, "%"),
    Column("worst10", "Worst 10%", True, "%"),
    Column("train_loss", "Training loss", False),
    Column("test_loss", "Test loss", False),
    Column("drift", "Drift", False),
    Column("megabytes", "Sent", False, "MB"),
    Column("cpu_seconds", "CPU time", False, "s"),
)
TO_LEVEL = (
    Column("rounds_to_level", "Rounds", False),
    Column("megabytes_to_level", "Sent", False, "MB"),
    Column("cpu_to_level", "CPU time", False, "s"),
)
"""What it takes to reach the best rival's final accuracy."""


@dataclass(frozen=True)
class Entry:
    """One model of one method: its numbers by seed."""

    label: str
    method: str
    lines: tuple[Line, ...]

    @cached_property
    def complete(self) -> tuple[Line, ...]:
        """The runs that count."""
        return tuple(line for line in self.lines if line.counts)

    def cell(self, column: Column) -> Estimate:
        """A column over the runs that count."""
        return Estimate.of({line.seed: _value(line, column.field) for line in self.complete})

    @property
    def accuracy(self) -> Estimate:
        """The score that counts."""
        return self.cell(ACCURACY)

    @property
    def settings(self) -> str:
        """What the search chose."""
        return self.lines[0].settings

    @property
    def seeds_text(self) -> str:
        """How many runs there are, where some did not end."""
        missing = len(self.lines) - len(self.complete)
        return f"{missing} of {len(self.lines)} runs diverged" if missing else ""


@dataclass(frozen=True)
class Versus:
    """A method's accuracy minus FedAPM's."""

    difference: Difference
    p: float | None
    corrected: float | None
    """The p-value after Holm's correction for all methods of the table."""


@dataclass(frozen=True)
class Table:
    """One case with one cohort and one split; the best method first, those without a number last."""

    case: str
    title: str
    data: str
    cohort: float
    split: str
    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.title}, {100 * self.cohort:g}% of clients a round"

    @property
    def label(self) -> str:
        """The same, short."""
        return f"{self.title}, {100 * self.cohort:g}%"

    @property
    def scored(self) -> list[Entry]:
        """Those that have an accuracy."""
        return [entry for entry in self.entries if entry.accuracy.values]

    def entry(self, method: str) -> Entry | None:
        """The first model of a method that has an accuracy."""
        return next((entry for entry in self.scored if entry.method == method), None)

    @property
    def ours(self) -> Entry | None:
        """FedAPM."""
        return self.entry(OURS)

    @cached_property
    def versus(self) -> dict[str, Versus]:
        """Every other method against FedAPM, by its label; empty without FedAPM."""
        ours = self.ours
        if ours is None:
            return {}
        found: dict[str, tuple[Difference, float | None]] = {}
        for entry in self.scored:
            difference = paired_difference(entry.accuracy.values, ours.accuracy.values)
            if entry is not ours and difference is not None:
                found[entry.label] = difference, paired_p(entry.accuracy.values, ours.accuracy.values)
        corrected = holm({label: p for label, (_, p) in found.items() if p is not None})
        return {label: Versus(difference, p, corrected.get(label)) for label, (difference, p) in found.items()}

    def level_with_first(self, entry: Entry) -> bool:
        """Whether a model is the first, or not behind the first by more than chance."""
        first = self.scored[0]
        if entry is first:
            return True
        difference = paired_difference(first.accuracy.values, entry.accuracy.values)
        return difference is None or not difference.clear

    @property
    def ranks(self) -> dict[str, int]:
        """The place of each model by mean accuracy; equal ones share it."""
        ranks: dict[str, int] = {}
        before: tuple[float | None, int] = (None, 0)
        for place, entry in enumerate(self.scored, start=1):
            mean = entry.accuracy.mean
            before = before if mean == before[0] else (mean, place)
            ranks[entry.label] = before[1]
        return ranks

    @property
    def personal(self) -> str:
        """What is personal, where the split was chosen."""
        return next((line.personal for entry in self.entries for line in entry.lines if line.personal), "")

    @property
    def rival(self) -> str:
        """Whose final accuracy is the level to reach."""
        return next((line.rival for entry in self.entries for line in entry.lines if line.rival), "")

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        return max(line.rounds for entry in self.entries for line in entry.lines)

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len({line.seed for entry in self.entries for line in entry.lines})


def tables(lines: Sequence[Line]) -> list[Table]:
    """The tables of a summary, in its order; methods that take no split are in each of a case's tables."""
    parts: dict[tuple[str, float], list[Line]] = {}
    for line in lines:
        parts.setdefault((line.case, line.cohort), []).append(line)
    found = []
    for (case, cohort), members in parts.items():
        splits = list(dict.fromkeys(line.split for line in members if line.split != UNSPLIT)) or [UNSPLIT]
        for split in splits:
            rows = [line for line in members if line.split in (split, UNSPLIT)]
            data = next((line.data for line in rows if line.data), "")
            found.append(Table(case, rows[0].title, data, cohort, split, _entries(rows)))
    return found


def _entries(lines: Sequence[Line]) -> tuple[Entry, ...]:
    by_label: dict[str, list[Line]] = {}
    for line in lines:
        by_label.setdefault(line.label, []).append(line)
    entries = [Entry(label, rows[0].method, tuple(rows)) for label, rows in by_label.items()]
    return tuple(sorted(entries, key=_order))


def _order(entry: Entry) -> tuple[float, str]:
    mean = entry.accuracy.mean
    return (float("inf") if mean is None else -mean, entry.label.casefold())


def _value(line: Line, field: str) -> float | None:
    if field.startswith("megabytes"):
        sent: float | None = getattr(line, field.replace("megabytes", "bytes"))
        return None if sent is None else sent / 1e6
    value: float | None = getattr(line, field)
    return value


def rounds_to_fedalt(table: Table) -> tuple[float, float] | None:
    """The mean rounds of FedAPM and of FedAlt to FedAlt's final accuracy; None where some seed does not get there."""
    found: list[float] = []
    for name in (OURS, FEDALT):
        entry = table.entry(name)
        rounds = [line.rounds_to_fedalt for line in entry.complete] if entry is not None else []
        reached = [number for number in rounds if number is not None]
        if not reached or len(reached) < len(rounds):
            return None
        found.append(sum(reached) / len(reached))
    return found[0], found[1]


def by_label(tables: Sequence[Table]) -> Mapping[str, list[int | None]]:
    """The rank of each model in each table, the best on average first."""
    return {label: [table.ranks.get(label) for table in tables] for label in mean_ranks(tables)}


def mean_ranks(tables: Sequence[Table]) -> Mapping[str, float]:
    """The mean rank of each model over tables, the best first; where it has none it counts as the last of all."""
    labels = dict.fromkeys(entry.label for table in tables for entry in table.entries)
    means = {label: fmean(table.ranks.get(label) or len(labels) for table in tables) for label in labels}
    return dict(sorted(means.items(), key=lambda item: (item[1], item[0].casefold())))
