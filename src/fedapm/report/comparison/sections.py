"""The parts of the page that need figures: curves, drift, differences, targets and clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from fedapm.report.comparison.clients import ClientScores
from fedapm.report.comparison.columns import Column
from fedapm.report.comparison.curves import OF_ROUNDS, of_metric
from fedapm.report.comparison.differences import Against, against_references
from fedapm.report.comparison.drift import FinalDrifts, final_drifts
from fedapm.report.comparison.published import published_lines
from fedapm.report.comparison.series import Group, Series
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.comparison.targets import TargetTable, choose_targets, longest_gap, named_targets, target_tables
from fedapm.report.figures.clients import draw_gains
from fedapm.report.figures.curves import draw_curves, lines_of
from fedapm.report.figures.differences import cut_off, draw_differences
from fedapm.report.figures.drift import draw_drift
from fedapm.report.figures.style import Style
from fedapm.report.metrics import BUILT_IN, featured, metrics_of
from fedapm.report.numbers import spread_of
from fedapm.runs.records import Run

Say = Callable[[str], str]


@dataclass(frozen=True)
class CurvePair:
    """A quantity against rounds and against bytes, the second only where anything was sent."""

    title: str
    by_round: Markup
    by_bytes: Markup | None
    published: bool
    """Whether the figure against rounds also holds published curves."""


@dataclass(frozen=True)
class GainFigure:
    """One method's gains and losses."""

    name: str
    svg: Markup


@dataclass(frozen=True)
class DriftBars:
    """Drift at the end as a figure, and what has to be said about it."""

    drifts: FinalDrifts
    svg: Markup


@dataclass(frozen=True)
class Differences:
    """Every model against one or two others: the numbers and a figure for each of those."""

    common: dict[str, str]
    """How many seeds each model shares with those it is held against."""
    same: str
    """The same in one word, where that number is the same everywhere; then no column is needed for it."""
    references: list[Against]
    figures: list[Markup]
    cut: bool
    one_seed: bool


@dataclass(frozen=True)
class Targets:
    """When models are at the targets, and what has to be said about it."""

    tables: list[TargetTable]
    unknown: list[str]
    chosen: bool
    gap: int


def curve_pairs(
    series: Sequence[Series], looks: dict[str, Style], main: Column, data: str | None, say: Say
) -> list[CurvePair]:
    """All curves that have something to show."""
    pairs = []
    metrics = metrics_of([run for one in series for run in one.group.runs])
    for quantity in (*map(of_metric, featured(metrics, main.field)), *OF_ROUNDS):
        quantity = replace(quantity, title=say(quantity.title), axis=say(quantity.axis))
        lines = lines_of(quantity, series, looks)
        if lines:
            sent = any(not line.sends_nothing and line.curve.megabytes[-1] > 0 for line in lines)
            last = max(line.curve.rounds[-1] for line in lines)
            others = published_lines(data, quantity, series, looks, last)
            by_round, *by_bytes = (draw_curves(quantity, lines, b, others) for b in (False, *([True] if sent else [])))
            pairs.append(CurvePair(quantity.title, by_round, by_bytes[0] if by_bytes else None, bool(others)))
    return pairs


def drift_bars(
    groups: Sequence[Group], rows: Sequence[SummaryRow], series: Sequence[Series], looks: dict[str, Style]
) -> DriftBars | None:
    """Drift at the end, in the order of the summary; None where no method has any or only one does."""
    place = {row.label: position for position, row in enumerate(rows)}
    first: dict[str, str] = {}
    for one in sorted(series, key=lambda one: place[one.name]):
        first.setdefault(one.group.label, one.name)
    order = list(first)
    shown = sorted((group for group in groups if group.label in first), key=lambda group: order.index(group.label))
    found = final_drifts(shown, first)
    if found is None or len(found.methods) < 2:
        return None
    return DriftBars(found, draw_drift(found, looks))


def differences(rows: Sequence[SummaryRow], main: Column, looks: dict[str, Style]) -> Differences | None:
    """Paired differences of the main score; None where there is nothing to pair."""
    found = against_references(rows, main)
    drawn = [draw_differences(one, looks, main, f"differences-{place}") for place, one in enumerate(found)]
    figures = [svg for svg in drawn if svg is not None]
    if not figures:
        return None
    common = {row.label: _common_seeds(row.label, found) for row in rows if row.cell(main).values}
    numbers = {number for number in common.values() if number}
    same = numbers.pop() if len(numbers) == 1 else ""
    one_seed = all(one.only_one_seed() for one in found)
    return Differences(common, same, found, figures, any(map(cut_off, found)), one_seed)


def targets(
    runs: Sequence[Run], levels: Mapping[str, float], rows: Sequence[SummaryRow], main: Column
) -> Targets | None:
    """When models are at the targets that were given, or at some chosen from these runs; None for a single model."""
    wanted = named_targets(runs, levels)
    if not wanted and len(rows) > 1:
        metrics = featured(metrics_of(runs), main.field)
        wanted = choose_targets(runs, [m for m in metrics if m.name in (*BUILT_IN, main.field)])
    tables, unknown = target_tables(runs, wanted)
    if not tables and not unknown:
        return None
    return Targets(tables, unknown, not levels, longest_gap(runs))


def gain_figures(clients: ClientScores, looks: dict[str, Style]) -> list[GainFigure]:
    """What each client gains or loses with each method, all on one scale."""
    compared = [row for row in clients.rows if row.against_alone is not None]
    every = [abs(g) for row in compared if row.against_alone for g in row.against_alone.gains if g is not None]
    limit = max(every, default=0.0) or 0.01
    return [
        GainFigure(row.series.name, draw_gains(row, clients, limit, looks[row.series.name], f"gains-{position}"))
        for position, row in enumerate(compared)
    ]


def _common_seeds(label: str, references: Sequence[Against]) -> str:
    pairs = [one.differences[label] for one in references if label in one.differences]
    return spread_of([pair.seeds if pair is not None else 0 for pair in pairs]) if pairs else ""
