"""Figures of a sweep: a quantity against the value of a setting, and over rounds for each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from fedapm.report.comparison.columns import Column, Estimate
from fedapm.report.comparison.curves import Curve, Quantity
from fedapm.report.figures.canvas import (
    HEIGHT,
    INK,
    Tip,
    as_html,
    drawing,
    legend_columns,
    new_figure,
    round_ticks,
    scale_values,
    short,
)
from fedapm.report.figures.curves import curve_tips, draw_curve, scaled
from fedapm.report.figures.style import MARKERS, Style
from fedapm.report.numbers import lower_first, plain
from fedapm.report.sweep.axis import ValueAxis

APART = 0.012
"""How far lines stand beside each other, as a share of the axis, so that whiskers do not hide one another."""


@dataclass(frozen=True)
class ValueLine:
    """One line against the values: a result at some places, crosses where runs diverged, or a level without a place."""

    name: str
    style: Style
    at: Sequence[tuple[float, Estimate]]
    diverged: Sequence[float] = ()
    level: Estimate | None = None

    @property
    def cells(self) -> list[Estimate]:
        """Every result of the line."""
        return [cell for _, cell in self.at] + ([self.level] if self.level is not None else [])


@dataclass(frozen=True)
class RoundLine:
    """One curve over rounds."""

    name: str
    style: Style
    curve: Curve


def value_styles(count: int) -> list[Style]:
    """A look for each of some values in order: from dark to light, each with a marker of its own."""
    colors = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.86, max(count, 1)))
    return [
        Style(to_hex(colors[i]), MARKERS[i % len(MARKERS)], (4.0, 1.6) if i >= len(MARKERS) else (), False, i)
        for i in range(count)
    ]


def draw_values(column: Column, axis: ValueAxis, lines: Sequence[ValueLine], name: str) -> Markup:
    """Mean over seeds at each value with whiskers of one standard deviation; a dashed level for what has no value."""
    factor = 100.0 if column.percentage else 1.0
    handles = [_handle(line, axis.numeric) for line in lines]
    key = axis.setting.rsplit(".", 1)[-1]
    labels = [line.name if line.level is None else f"{short(line.name, 18)}, no {short(key, 12)}" for line in lines]
    if any(line.diverged for line in lines):
        handles.append(Line2D([], [], color=INK, linestyle="", marker="x", markeredgewidth=1.6))
        labels.append("diverged")
    with drawing():
        figure, axes = new_figure(HEIGHT, labels, handles, legend_columns(labels))
        for position, line in enumerate(lines):
            _draw_line(axes, line, factor, _shift(axis, position, lines), axis.numeric)
        axis.dress(axes)
        unit = " (%)" if column.percentage else ""
        axes.set_ylabel(f"{lower_first(column.title)}{unit}")
        means = [factor * cell.mean for line in lines for cell in line.cells if cell.mean is not None]
        scale_values(axes, means, not column.percentage)
        names = dict(zip(axis.places, axis.labels, strict=True))
        tips = [
            Tip(
                axes,
                place + _shift(axis, position, lines),
                factor * cell.mean,
                f"{line.name} at {names[place]}: {text}",
            )
            for position, line in enumerate(lines)
            for place, cell in line.at
            if cell.mean is not None
            for text in [f"{factor * cell.mean:.6g}{f' ± {factor * cell.std:.3g}' if cell.std else ''}"]
        ]
        return as_html(figure, name, _description(column, axis, lines), tips)


def _shift(axis: ValueAxis, position: int, lines: Sequence[ValueLine]) -> float:
    return APART * axis.width * (position - (len(lines) - 1) / 2)


def draw_rounds(quantity: Quantity, lines: Sequence[RoundLine], name: str) -> Markup:
    """The course of a quantity at each value: mean over seeds, with a band from the smallest to the largest."""
    factor = 100.0 if quantity.percentage else 1.0
    labels = [line.name for line in lines]
    handles = [
        Line2D([], [], color=line.style.color, linestyle=line.style.line, marker=line.style.marker) for line in lines
    ]
    with drawing():
        figure, axes = new_figure(HEIGHT, labels, handles, legend_columns(labels))
        for line in lines:
            draw_curve(axes, scaled(line.curve, factor), line.style, band=0.1)
        axes.set_xlabel("round")
        axes.set_ylabel(quantity.axis)
        round_ticks(axes.xaxis, integer=True)
        axes.set_xlim(left=0)
        values = [factor * v for line in lines for v in (*line.curve.low, *line.curve.high)]
        scale_values(axes, values, not quantity.percentage)
        ends = ", ".join(f"{line.name}: {plain(factor * line.curve.mean[-1], 4)}" for line in lines)
        tips = [tip for line in lines for tip in curve_tips(axes, scaled(line.curve, factor), line.name)]
        return as_html(figure, name, f"{quantity.axis} over rounds; last values {ends}.", tips)


def _handle(line: ValueLine, connected: bool) -> Line2D:
    style = line.style
    if line.level is not None:
        return Line2D([], [], color=style.color, linestyle="--", linewidth=1.3)
    dashes = style.line if connected else ""
    return Line2D([], [], color=style.color, linestyle=dashes, marker=style.marker, markerfacecolor=style.face)


def _draw_line(axes: Axes, line: ValueLine, factor: float, shift: float, connected: bool) -> None:
    style = line.style
    if line.level is not None and line.level.mean is not None:
        mean, std = factor * line.level.mean, factor * (line.level.std or 0.0)
        axes.axhline(mean, color=style.color, linestyle="--", linewidth=1.3)
        if std:
            axes.axhspan(mean - std, mean + std, color=style.color, alpha=0.1, linewidth=0)
    points = [(place + shift, cell.mean, cell.std or 0.0) for place, cell in line.at if cell.mean is not None]
    if points:
        places, means, stds = zip(*points, strict=True)
        axes.errorbar(
            places,
            factor * np.array(means),
            yerr=factor * np.array(stds) if any(stds) else None,
            color=style.color,
            linestyle=style.line if connected else "",
            marker=style.marker,
            markerfacecolor=style.face,
            elinewidth=1.0,
            capsize=2.5,
        )
    if line.diverged:
        axes.plot(
            [place + shift for place in line.diverged],
            [0.03] * len(line.diverged),
            transform=axes.get_xaxis_transform(),
            color=style.color,
            linestyle="",
            marker="x",
            markeredgewidth=1.6,
            clip_on=False,
        )


def _description(column: Column, axis: ValueAxis, lines: Sequence[ValueLine]) -> str:
    """The figure in words, for screen readers."""
    labels = dict(zip(axis.places, axis.labels, strict=True))
    descriptions = []
    for line in lines:
        parts = [f"{column.mean_text(cell)} at {labels[place]}" for place, cell in line.at]
        parts += [f"diverged at {labels[place]}" for place in line.diverged]
        if line.level is not None:
            parts.append(f"{column.mean_text(line.level)} without the setting")
        descriptions.append(f"{line.name}: {', '.join(parts)}")
    unit = " in per cent" if column.percentage else ""
    return f"{column.title}{unit} against {axis.setting}. {'; '.join(descriptions)}."
