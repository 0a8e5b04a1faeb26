"""Figures of a quantity over rounds and over bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedapm.report.comparison.curves import Curve, Quantity, curve
from fedapm.report.comparison.series import Series
from fedapm.report.figures.canvas import LOG_FROM, as_html, drawing, new_figure, power_ticks, round_ticks, short
from fedapm.report.figures.style import Style
from fedapm.report.numbers import plain

HEIGHT = 2.65
MOST_POINTS = 240
LEGEND_LETTERS = 58
LETTERS_BESIDE = 8
PUBLISHED = "published"
PUBLISHED_LINE = (0.0, (4.0, 2.0))
_GREY = "#6b7075"


@dataclass(frozen=True)
class Line:
    """One series in a figure of curves."""

    name: str
    style: Style
    curve: Curve
    sends_nothing: bool

    @property
    def level_name(self) -> str:
        """What the dashed level of a method that sends nothing is called."""
        return f"{short(self.name, 18)}, last value"


@dataclass(frozen=True)
class PublishedLine:
    """What somebody else published about a method: no seeds, no bytes, only a mean in each round."""

    name: str
    color: str
    rounds: list[int]
    values: list[float]


def lines_of(quantity: Quantity, series: Sequence[Series], styles: dict[str, Style]) -> list[Line]:
    """What a figure of this quantity shows; what belongs to a method and not to a model is drawn once."""
    found = []
    drawn: set[str] = set()
    for one in series:
        if not quantity.per_view and one.group.label in drawn:
            continue
        line = curve(one, quantity)
        if line is not None:
            drawn.add(one.group.label)
            name = one.name if quantity.per_view else one.group.label
            scaled = _scaled(line, 100.0) if quantity.percentage else line
            found.append(Line(name, styles[one.name], scaled, one.group.sends_nothing))
    return found


def draw_curves(
    quantity: Quantity, lines: Sequence[Line], by_bytes: bool, published: Sequence[PublishedLine] = ()
) -> Markup:
    """Mean over seeds as a line, smallest to largest seed as a band.

    Against bytes, a method that sends nothing has no place on the axis: its last value is a dashed level. Published
    curves are thin, broken and without markers, in the color of their method.
    """
    levels = [by_bytes and line.sends_nothing for line in lines]
    labels = [line.level_name if level else line.name for line, level in zip(lines, levels, strict=True)]
    handles = [_handle(line.style, level) for line, level in zip(lines, levels, strict=True)]
    columns = _legend_columns(lines, bool(published))
    if published:
        # against bytes there is nothing to draw, only room to keep, so that the two figures of a pair line up
        labels.append(" " if by_bytes else PUBLISHED)
        handles.append(Line2D([], [], color=_GREY, linestyle=PUBLISHED_LINE, linewidth=1.0, visible=not by_bytes))
        published = () if by_bytes else published
    values = [v for line in lines for v in (*line.curve.low, *line.curve.high)]
    with drawing():
        figure, axes = new_figure(HEIGHT, labels, handles, columns)
        for other in published:
            axes.plot(other.rounds, other.values, color=other.color, linestyle=PUBLISHED_LINE, linewidth=1.0)
            values += other.values
        for line, level in zip(lines, levels, strict=True):
            if level:
                axes.axhline(line.curve.mean[-1], color=line.style.color, linestyle="--", linewidth=1.3)
            else:
                _draw_line(axes, line, by_bytes)
        axes.set_xlabel("sent up and down by all clients (MB)" if by_bytes else "round")
        axes.set_ylabel(quantity.axis)
        round_ticks(axes.xaxis, integer=not by_bytes)
        axes.set_xlim(left=0)
        _scale_values(axes, values, quantity)
        name = f"{quantity.key}-{'bytes' if by_bytes else 'rounds'}"
        return as_html(figure, name, _description(quantity, lines, by_bytes, published))


def _description(quantity: Quantity, lines: Sequence[Line], by_bytes: bool, published: Sequence[PublishedLine]) -> str:
    unit = " in per cent" if quantity.percentage else ""
    against = "megabytes sent" if by_bytes else "rounds"
    ends = ", ".join(f"{line.name} {plain(line.curve.mean[-1], 4)}" for line in lines)
    others = ", ".join(f"{one.name} {plain(one.values[-1], 4)}" for one in published)
    beside = f" Published curves, at the last round shown: {others}." if others else ""
    return f"{quantity.title}{unit} against {against}. Last values: {ends}.{beside}"


def _legend_columns(lines: Sequence[Line], published: bool) -> int:
    """As many as fit, the same against rounds and bytes so that the two figures of a pair line up."""
    lengths = [len(line.level_name if line.sends_nothing else short(line.name)) for line in lines]
    lengths += [len(PUBLISHED)] if published else []
    for columns in (4, 3, 2):
        parts = np.array_split(lengths, min(columns, len(lengths)))
        if sum(max(part) + LETTERS_BESIDE for part in parts) <= LEGEND_LETTERS:
            return columns
    return 1


def _handle(style: Style, level: bool) -> Line2D:
    if level:
        return Line2D([], [], color=style.color, linestyle="--", linewidth=1.3)
    face, line = style.face, style.line
    return Line2D([], [], color=style.color, linestyle=line, marker=style.marker, markerfacecolor=face)


def _draw_line(axes: Axes, line: Line, by_bytes: bool) -> None:
    shown = _thinned(line.curve)
    places = shown.megabytes if by_bytes else shown.rounds
    style = line.style
    if shown.seeds > 1:
        axes.fill_between(places, shown.low, shown.high, color=style.color, alpha=0.13, linewidth=0)
    every = max(1, math.ceil(len(places) / 7))
    axes.plot(
        places,
        shown.mean,
        color=style.color,
        linestyle=style.line,
        marker=style.marker,
        markerfacecolor=style.face,
        markevery=(style.position * every // 5 % every, every),
    )


def _thinned(whole: Curve) -> Curve:
    """At most so many points, the last among them: more than that no eye sees and no page should carry."""
    count = len(whole.rounds)
    if count <= MOST_POINTS:
        return whole
    kept = sorted({round(i * (count - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})
    return Curve(
        [whole.rounds[i] for i in kept],
        [whole.megabytes[i] for i in kept],
        [whole.mean[i] for i in kept],
        [whole.low[i] for i in kept],
        [whole.high[i] for i in kept],
        whole.seeds,
    )


def _scaled(whole: Curve, factor: float) -> Curve:
    return replace(
        whole,
        mean=[factor * value for value in whole.mean],
        low=[factor * value for value in whole.low],
        high=[factor * value for value in whole.high],
    )


def _scale_values(axes: Axes, values: Sequence[float], quantity: Quantity) -> None:
    """Powers of ten where values differ by more than a linear axis can show; the axis says so."""
    low, high = min(values), max(values)
    if not quantity.percentage and low > 0 and high / low > LOG_FROM:
        axes.set_yscale("log")
        axes.set_ylabel(f"{quantity.axis}, log scale")
        power_ticks(axes.yaxis, high / low)
    else:
        round_ticks(axes.yaxis)
