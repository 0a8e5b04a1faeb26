"""sweeps.csv: what single settings do to the tuned methods, one line for each run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from fedapm.core.metrics import ACCURACY as ACCURACY_METRIC
from fedapm.core.metrics import TRAIN_LOSS
from fedapm.report.comparison.columns import Column, Estimate
from fedapm.report.comparison.series import score
from fedapm.report.comparison.summary import last_drift
from fedapm.report.figures.sweep import ValueLine, draw_values, value_styles
from fedapm.report.study.rows import read_rows, write_rows
from fedapm.report.study.tables import ACCURACY, OURS
from fedapm.report.sweep.axis import value_axis
from fedapm.report.sweep.runs import Point, read_sweep, written

SWEPT = (
    "Accuracy on test data in per cent, mean ± standard deviation over seeds, with all other settings as the search "
    "found them. Nothing was chosen by it."
)


@dataclass(frozen=True)
class SweepLine:
    """One run at one value of a setting after its last round; None where there is no such number."""

    case: str
    title: str
    cohort: float
    """The share of clients in a round, where that is not what is varied."""
    setting: str
    value: float
    method: str
    label: str
    seed: int
    status: str
    accuracy: float | None
    train_loss: float | None
    drift: float | None


@dataclass(frozen=True)
class SweepRow:
    """One method on one data set: its runs at every value."""

    title: str
    method: str
    label: str
    lines: tuple[SweepLine, ...]

    def at(self, value: float, column: Column = ACCURACY) -> Estimate:
        """A column over the complete runs at a value."""
        runs = [line for line in self.lines if line.value == value and line.status == "complete"]
        return Estimate.of({line.seed: getattr(line, column.field) for line in runs})


@dataclass(frozen=True)
class SweepTable:
    """One setting, with every data set and method it was varied for."""

    setting: str
    values: tuple[float, ...]
    rows: tuple[SweepRow, ...]

    @property
    def headings(self) -> tuple[str, ...]:
        """Of :attr:`cells`."""
        return ("Data set", "Method", *(written(value) for value in self.values))

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """Accuracy at every value, a row for each data set and method."""
        return [(row.title, row.label, *(self._cell(row, value) for value in self.values)) for row in self.rows]

    def _cell(self, row: SweepRow, value: float) -> str:
        if (cell := row.at(value)).values:
            return f"{ACCURACY.mean_text(cell)} {ACCURACY.std_text(cell)}".strip()
        return "diverged" if any(line.value == value for line in row.lines) else "–"

    @property
    def figure(self) -> Markup:
        """Accuracy of FedAPM against the value, a line for each data set."""
        rows = [row for row in self.rows if row.method == OURS] or list(self.rows)
        axis, styles = value_axis(self.setting, self.values), value_styles(len(rows))
        lines = [
            ValueLine(row.title, style, [(axis.place(v), row.at(v)) for v in self.values if row.at(v).values])
            for row, style in zip(rows, styles, strict=True)
        ]
        return draw_values(ACCURACY, axis, [line for line in lines if line.at], f"sweep-{self.setting}")


def write_sweeps(path: Path, lines: Iterable[SweepLine]) -> None:
    """Write what was varied."""
    write_rows(path, SweepLine, lines)


def read_sweeps(path: Path) -> list[SweepLine]:
    """Read what was varied; nothing where there is no such file.

    Raises:
        FedapmError: Where the file is something else; with the line.
    """
    return read_rows(path, SweepLine, "the sweeps of a study") if path.is_file() else []


def collect_sweep(folder: Path, case: str, title: str, cohort: float) -> list[SweepLine]:
    """The lines of one sweep.

    Args:
        folder: The sweep's folder.
        case: The case's name.
        title: The case's title.
        cohort: The share of clients in a round.
    """
    sweep = read_sweep(folder)
    (setting,) = sweep.axes
    return [
        line
        for point in sweep.points
        if setting in point.values
        for line in _lines(point, setting, case, title, cohort)
    ]


def _lines(point: Point, setting: str, case: str, title: str, cohort: float) -> list[SweepLine]:
    series = next(iter(point.series()), None)
    found = []
    for run in point.group.every_run:
        last = series.last(run) if series is not None else {}
        found.append(
            SweepLine(
                case=case,
                title=title,
                cohort=cohort,
                setting=setting,
                value=float(point.values[setting]),
                method=point.group.method,
                label=point.group.label,
                seed=run.seed,
                status=str(run.info["status"]),
                accuracy=score(last, ACCURACY_METRIC.name),
                train_loss=score(last, TRAIN_LOSS.name),
                drift=last_drift(run) if run.evaluated else None,
            )
        )
    return found


def sweep_tables(lines: Sequence[SweepLine]) -> list[SweepTable]:
    """One table for each setting, in the order of the lines."""
    by_setting: dict[str, list[SweepLine]] = {}
    for line in lines:
        by_setting.setdefault(line.setting, []).append(line)
    return [
        SweepTable(setting, tuple(sorted({line.value for line in members})), _rows(members))
        for setting, members in by_setting.items()
    ]


def _rows(lines: Sequence[SweepLine]) -> tuple[SweepRow, ...]:
    rows: dict[tuple[str, str], list[SweepLine]] = {}
    for line in lines:
        rows.setdefault((line.case, line.label), []).append(line)
    return tuple(SweepRow(some[0].title, some[0].method, some[0].label, tuple(some)) for some in rows.values())


def sentence(table: SweepTable) -> str:
    """How much FedAPM depends on the setting, in words; empty without FedAPM."""
    spans = []
    for row in table.rows:
        means = [(cell.mean, value) for value in table.values if (cell := row.at(value)).mean is not None]
        if row.method == OURS and len(means) > 1:
            best, worst = max(means, key=lambda one: one[0] or 0.0), min(means, key=lambda one: one[0] or 0.0)
            gap = 100 * ((best[0] or 0.0) - (worst[0] or 0.0))
            spans.append(f"{row.title} {gap:.2f} (best at {written(best[1])}, worst at {written(worst[1])})")
    if not spans:
        return ""
    return f"Points between FedAPM's best and worst value, each a mean over seeds: {'; '.join(spans)}."
