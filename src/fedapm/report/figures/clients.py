"""Figures of single clients: how they spread, and what each gains or loses by joining."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as MplPath

from fedapm.report.comparison.columns import Column
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.figures.canvas import INK, Tip, as_html, drawing, name_rows, new_figure, round_ticks
from fedapm.report.figures.style import Style
from fedapm.report.numbers import lower_first

if TYPE_CHECKING:
    from fedapm.report.comparison.sections.clients import ClientRow, ClientScores

MOST_DOTS = 120
MOST_HATCHED = 60
ROOM_FOR_NAMES = 56
_GREY = "#9aa0a6"


def draw_spread(table: ClientScores, rows: dict[str, SummaryRow], styles: dict[str, Style]) -> Markup:
    """Where the clients of each method lie: all as dots, or their quantiles where there are many.

    Seeds are pooled: averaged over seeds, a client that does badly in one of them would vanish.
    """
    every_row = [*table.rows, *([table.alone] if table.alone else [])]
    place_of = {name: place for place, name in enumerate(rows)}
    shown = sorted(every_row, key=lambda row: place_of[row.series.name])
    factor = _factor(table.column)
    many = max(len(row.every_score) for row in shown) > MOST_DOTS
    handles = _spread_legend(many)
    with drawing():
        labels = [str(handle.get_label()) for handle in handles]
        figure, axes = new_figure(0.6 + 0.3 * len(shown), labels, handles, columns=2 if many else 3)
        for place, row in enumerate(shown):
            color = styles[row.series.name].color
            (_draw_quantiles if many else _draw_dots)(axes, factor * np.array(row.every_score), place, color)
            summary = rows[row.series.name]
            mean, worst = summary.cell(table.column).mean, summary.worst10(table.column).mean
            if mean is not None:
                axes.plot(factor * mean, place, "|", color=INK, markersize=13, markeredgewidth=2, zorder=4)
            if worst is not None:
                axes.plot(factor * worst, place, "<", color=INK, markersize=5, zorder=4)
        name_rows(axes, [row.series.name for row in shown])
        unit = " (%)" if table.column.percentage else ""
        axes.set_xlabel(f"{lower_first(table.column.title)}{unit}")
        round_ticks(axes.xaxis)
        ends = ", ".join(f"{row.series.name} {_extent(row.every_score, table.column)}" for row in shown)
        tips = [tip for place, row in enumerate(shown) for tip in _spread_tips(axes, row, place, rows, table.column)]
        return as_html(figure, "clients-spread", f"{table.column.title}{unit} of the clients: {ends}.", tips)


def draw_gains(row: ClientRow, table: ClientScores, limit: float, style: Style, name: str) -> Markup:
    """One bar a client, up where it gained over training alone and down where it lost.

    All methods share the order of clients and the scale, so that the figures can be read side by side.
    """
    against = row.against_alone
    assert against is not None, "there is nothing to draw for a method that is not compared"
    factor = _factor(table.column)
    gains = [factor * gain if gain is not None else 0.0 for gain in against.gains]
    with drawing():
        figure, axes = new_figure(1.65)
        up, down = _bars([max(gain, 0.0) for gain in gains]), _bars([min(gain, 0.0) for gain in gains])
        axes.add_patch(PathPatch(up, facecolor=style.color, edgecolor="none"))
        axes.add_patch(_pale(down, style, len(gains)))
        axes.axhline(0.0, color=INK, linewidth=0.8)
        axes.set_xlim(-0.7, len(gains) - 0.3)
        axes.set_ylim(-1.08 * factor * limit, 1.08 * factor * limit)
        axes.grid(visible=False, axis="x")
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="x", length=0)
        named = len(gains) * (max(map(len, table.ids)) + 0.8) <= ROOM_FOR_NAMES
        axes.set_xticks(range(len(gains)) if named else [], table.ids if named else [], fontsize=7.0)
        axes.set_xlabel("client, weakest alone first")
        axes.set_ylabel("gain (points)" if table.column.percentage else "loss less by")
        round_ticks(axes.yaxis, 5, symmetric=True)
        counts = f"{against.better:.3g} better, {against.equal:.3g} equal, {against.worse:.3g} worse"
        tips = [
            Tip(axes, place, 0.0, f"{id}: {table.column.write_difference(gain)}", 0.5)
            for place, (id, gain) in enumerate(zip(table.ids, against.gains, strict=True))
            if gain is not None and len(gains) <= MOST_HATCHED
        ]
        return as_html(figure, name, f"{row.series.name} against training alone, client by client: {counts}.", tips)


def _spread_tips(axes: Axes, row: ClientRow, place: int, rows: dict[str, SummaryRow], column: Column) -> Iterator[Tip]:
    """The value of each client where they are drawn one by one, and those of the marks."""
    factor, name = _factor(column), row.series.name
    if len(row.every_score) <= MOST_DOTS:
        for value, shift in zip(row.every_score, _shifts(len(row.every_score)), strict=True):
            yield Tip(axes, factor * value, place + shift, f"{name}, a client: {column.write(value)}")
    for title, cell in (("mean", rows[name].cell(column)), ("worst 10%", rows[name].worst10(column))):
        if cell.mean is not None:
            yield Tip(axes, factor * cell.mean, place, f"{name}, {title}: {factor * cell.mean:.6g}")


def _spread_legend(many: bool) -> list[Line2D]:
    mean = Line2D([], [], color=INK, marker="|", linestyle="", markersize=11, markeredgewidth=2, label="mean")
    worst = Line2D([], [], color=INK, marker="<", linestyle="", markersize=5, label="mean of the worst 10%")
    if not many:
        return [
            Line2D([], [], color=_GREY, marker="o", linestyle="", markersize=3.6, label="a client"),
            mean,
            worst,
        ]
    half = Line2D([], [], color=_GREY, linewidth=6, solid_capstyle="butt", label="middle half of clients")
    return [half, Line2D([], [], color=_GREY, linewidth=1.4, label="5% to 95% of clients"), mean, worst]


def _draw_dots(axes: Axes, values: np.ndarray, place: int, color: str) -> None:
    axes.plot(
        values, place + np.array(_shifts(values.size)), "o", color=color, markersize=3, alpha=0.5, markeredgewidth=0
    )


def _shifts(count: int) -> list[float]:
    """How far each dot is from its row, so that equal ones do not hide each other."""
    return [0.44 * (k * 0.618034 % 1.0 - 0.5) for k in range(count)]


def _draw_quantiles(axes: Axes, values: np.ndarray, place: int, color: str) -> None:
    low, first, third, high = (float(q) for q in np.quantile(values, (0.05, 0.25, 0.75, 0.95)))
    axes.plot([low, high], [place, place], color=color, linewidth=1.4, alpha=0.6)
    axes.plot([first, third], [place, place], color=color, linewidth=6, alpha=0.6, solid_capstyle="butt")


def _bars(heights: Sequence[float]) -> MplPath:
    """All bars as one outline: a page with 500 clients and 14 methods stays small."""
    half = 0.36 if len(heights) <= 120 else 0.5
    corners, codes = [(0.0, 0.0)], [MplPath.MOVETO]
    for place, height in enumerate(heights):
        if height:
            left, right = place - half, place + half
            corners += [(left, 0.0), (left, height), (right, height), (right, 0.0), (left, 0.0)]
            codes += [
                MplPath.MOVETO,
                MplPath.LINETO,
                MplPath.LINETO,
                MplPath.LINETO,
                MplPath.CLOSEPOLY,
            ]
    return MplPath(corners, codes)


def _pale(bars: MplPath, style: Style, clients: int) -> PathPatch:
    """Losses: hatched, or a light tint where bars are too thin for a hatch."""
    if clients > MOST_HATCHED:
        return PathPatch(bars, facecolor=style.color, edgecolor="none", alpha=0.5)
    return PathPatch(bars, facecolor="white", edgecolor=style.color, linewidth=0.7, hatch="/////")


def _extent(values: Sequence[float], column: Column) -> str:
    return f"{column.write(min(values))} to {column.write(max(values))}"


def _factor(column: Column) -> float:
    return 100.0 if column.percentage else 1.0
