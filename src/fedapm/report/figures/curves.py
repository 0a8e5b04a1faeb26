"""Figures of a quantity over rounds and over bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedapm.report.comparison.curves import Curve, Quantity, curve
from fedapm.report.comparison.series import Series
from fedapm.report.figures.canvas import (
    GREY,
    HEIGHT,
    Tip,
    as_html,
    drawing,
    legend_columns,
    new_figure,
    round_ticks,
    scale_values,
    short,
)
from fedapm.report.figures.style import Style
from fedapm.report.numbers import plain

MOST_POINTS = 240
MOST_TIPS = 16
"""Points of a curve that tell their value."""
PUBLISHED = "published"
PUBLISHED_LINE = (0.0, (4.0, 2.0))


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
    lines: dict[str, Line] = {}
    for model in series:
        name = model.name if quantity.per_view else model.group.label
        values = curve(model, quantity) if name not in lines else None
        if values is not None:
            values = scaled(values, 100.0) if quantity.percentage else values
            lines[name] = Line(name, styles[model.name], values, model.group.sends_nothing)
    return list(lines.values())


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
    # the same against rounds and bytes, so that the two figures of a pair line up
    widest = [line.level_name if line.sends_nothing else line.name for line in lines]
    columns = legend_columns([*widest, PUBLISHED] if published else widest)
    if published:
        # against bytes there is nothing to draw, only room to keep, so that the two figures of a pair line up
        labels.append(" " if by_bytes else PUBLISHED)
        handles.append(Line2D([], [], color=GREY, linestyle=PUBLISHED_LINE, linewidth=1.0, visible=not by_bytes))
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
                draw_curve(axes, line.curve, line.style, by_bytes)
        axes.set_xlabel("sent up and down by all clients (MB)" if by_bytes else "round")
        axes.set_ylabel(quantity.axis)
        round_ticks(axes.xaxis, integer=not by_bytes)
        axes.set_xlim(left=0)
        scale_values(axes, values, not quantity.percentage)
        name = f"{quantity.key}-{'bytes' if by_bytes else 'rounds'}"
        tips = [
            tip
            for line, level in zip(lines, levels, strict=True)
            if not level
            for tip in curve_tips(axes, line.curve, line.name, by_bytes)
        ]
        return as_html(figure, name, _description(quantity, lines, by_bytes, published), tips)


def _description(quantity: Quantity, lines: Sequence[Line], by_bytes: bool, published: Sequence[PublishedLine]) -> str:
    unit = " in per cent" if quantity.percentage else ""
    against = "megabytes sent" if by_bytes else "rounds"
    ends = ", ".join(f"{line.name} {plain(line.curve.mean[-1], 4)}" for line in lines)
    others = ", ".join(f"{line.name} {plain(line.values[-1], 4)}" for line in published)
    beside = f" Published curves, at the last round shown: {others}." if others else ""
    return f"{quantity.title}{unit} against {against}. Last values: {ends}.{beside}"


def _handle(style: Style, level: bool) -> Line2D:
    if level:
        return Line2D([], [], color=style.color, linestyle="--", linewidth=1.3)
    face, line = style.face, style.line
    return Line2D([], [], color=style.color, linestyle=line, marker=style.marker, markerfacecolor=face)


def draw_curve(axes: Axes, curve: Curve, style: Style, by_bytes: bool = False, band: float = 0.13) -> None:
    """One curve: the mean over seeds as a line, the smallest to the largest seed as a band.

    Args:
        axes: Where to draw.
        curve: The values, in the units of the axes.
        style: The look of the line.
        by_bytes: Whether the horizontal axis has megabytes and not rounds.
        band: How opaque the band is.
    """
    curve = _thinned(curve)
    places = curve.megabytes if by_bytes else curve.rounds
    if curve.seeds > 1:
        axes.fill_between(places, curve.low, curve.high, color=style.color, alpha=band, linewidth=0)
    every = max(1, math.ceil(len(places) / 7))
    axes.plot(
        places,
        curve.mean,
        color=style.color,
        linestyle=style.line,
        marker=style.marker,
        markerfacecolor=style.face,
        markevery=(style.position * every // 5 % every, every),
    )


def curve_tips(axes: Axes, curve: Curve, name: str, by_bytes: bool = False) -> list[Tip]:
    """The exact values of some points of a curve, the last among them.

    Args:
        axes: Where it was drawn.
        curve: The values, in the units of the axes.
        name: What the curve is called.
        by_bytes: Whether the horizontal axis has megabytes and not rounds.
    """
    curve = _thinned(curve, MOST_TIPS)
    places = curve.megabytes if by_bytes else curve.rounds
    tips = []
    for k, (place, round, mean) in enumerate(zip(places, curve.rounds, curve.mean, strict=True)):
        spread = f" ({curve.low[k]:.6g} to {curve.high[k]:.6g})" if curve.seeds > 1 else ""
        sent = f", {place:.6g} MB" if by_bytes else ""
        tips.append(Tip(axes, place, mean, f"{name}, round {round}{sent}: {mean:.6g}{spread}"))
    return tips


def _thinned(curve: Curve, most: int = MOST_POINTS) -> Curve:
    """At most so many points, the last among them: more cannot be seen and would only make the page larger."""
    count = len(curve.rounds)
    if count <= most:
        return curve
    shown = sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
    return Curve(
        [curve.rounds[i] for i in shown],
        [curve.megabytes[i] for i in shown],
        [curve.mean[i] for i in shown],
        [curve.low[i] for i in shown],
        [curve.high[i] for i in shown],
        curve.seeds,
    )


def scaled(curve: Curve, factor: float) -> Curve:
    """The same curve in another unit."""
    low, mean, high = ([factor * value for value in values] for values in (curve.low, curve.mean, curve.high))
    return replace(curve, low=low, mean=mean, high=high)
