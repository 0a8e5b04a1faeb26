"""The figures of a sweep: what is drawn against the values, and what over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedapm.report.comparison.columns import DRIFT, Column
from fedapm.report.comparison.curves import curve, of_metric
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.figures.style import Style
from fedapm.report.figures.sweep import RoundLine, ValueLine, draw_rounds, draw_values, value_styles
from fedapm.report.numbers import listed, lower_first
from fedapm.report.page import Figure
from fedapm.report.results import Results
from fedapm.report.sweep.axis import ValueAxis, value_axis
from fedapm.report.sweep.runs import Model, Point, Sweep, written

MOST_CURVES = 12

Members = Sequence[tuple[Point, SummaryRow]]
Panel = tuple[str, list[tuple[str, Style, Members]]]
"""A figure's title and its lines: name, style and results."""


def against_values(sweep: Sweep, results: Results, prefix: str = "") -> list[Figure]:
    """One figure for each quantity with a line for each model.

    Where several settings are varied, one figure for each model with a line for each combination of the others.

    Args:
        sweep: The sweep.
        results: The same as results by method.
        prefix: Begins the ids in the figures, so that several sweeps can be on one page.
    """
    setting, *others = sweep.axes
    axis = value_axis(setting, sweep.axes[setting])
    main = results.main
    drawn = [*(metric.name for metric in results.featured), DRIFT.field]
    figures = []
    for column in [main, *(column for column in results.columns if column.field in drawn and column != main)]:
        models = sweep.models
        if column == DRIFT:
            models = [replace(model, name=model.results[0][0].group.label) for model in models if model.first]
        panels = [_by_other_values(model, others) for model in models] if others else [_by_model(models, results)]
        for number, (panel, members) in enumerate(panels):
            lines = [_line(name, style, points, column, setting, axis) for name, style, points in members]
            lines = [line for line in lines if line.cells or line.diverged]
            if any(line.cells for line in lines):
                svg = draw_values(column, axis, lines, f"{prefix}values-{column.field}-{number}")
                figures.append(Figure(f"{column.title}{panel and f', {panel}'}", svg))
    return figures


def over_rounds(sweep: Sweep, results: Results) -> list[Figure]:
    """The featured metrics over rounds, one figure for each model with a curve for each point."""
    metrics = sorted(results.featured, key=lambda metric: metric.name != results.main.field)
    figures = []
    for number, model in enumerate(sweep.models):
        shown = _at_most([member for member in model.results if member[0].state != "diverged"], MOST_CURVES)
        for quantity in map(of_metric, metrics):
            lines = []
            for (point, row), style in zip(shown, value_styles(len(shown)), strict=True):
                series = next(series for series in point.series() if series.view == row.view)
                values = curve(series, quantity)
                if values is not None:
                    ending = "" if point.counts else " (unfinished)"
                    lines.append(RoundLine(f"{_legend(sweep, point)}{ending}", style, values))
            if lines:
                titled = replace(quantity, axis=results.reword(quantity.axis))
                svg = draw_rounds(titled, lines, f"rounds-{quantity.key}-{number}")
                title = lower_first(results.reword(quantity.title))
                figures.append(Figure(f"{model.name}: {title}{_each_setting(shown)}", svg))
    return figures


def _by_model(models: Sequence[Model], results: Results) -> Panel:
    return "", [(model.name, results.styles[model.results[0][1].label], model.results) for model in models]


def _by_other_values(model: Model, others: Sequence[str]) -> Panel:
    """A model's results apart by everything that is varied besides the axis."""
    members: dict[str, list[tuple[Point, SummaryRow]]] = {}
    for point, row in model.results:
        rest = {name: point.values[name] for name in others if name in point.values}
        members.setdefault(replace(point, values=rest).place or model.name, []).append((point, row))
    styles = value_styles(len(members))
    return model.name, [(name, styles[i], results) for i, (name, results) in enumerate(members.items())]


def _line(name: str, style: Style, members: Members, column: Column, setting: str, axis: ValueAxis) -> ValueLine:
    placed = [(point, row.cell(column)) for point, row in members if setting in point.values]
    levels = [row.cell(column) for point, row in members if setting not in point.values and point.counts]
    return ValueLine(
        name,
        style,
        at=[(axis.place(p.values[setting]), cell) for p, cell in placed if p.counts and cell.values],
        diverged=[axis.place(point.values[setting]) for point, _ in placed if point.state == "diverged"],
        level=next((cell for cell in levels if cell.values), None),
    )


def _legend(sweep: Sweep, point: Point) -> str:
    """A point in a legend: the value alone where one setting is varied, which the caption names."""
    if not point.values:
        return point.group.label
    if len(sweep.axes) == 1:
        return written(next(iter(point.values.values())))
    return ", ".join(f"{name.rsplit('.', 1)[-1]} {written(value)}" for name, value in point.values.items())


def _each_setting(members: Members) -> str:
    """Which settings the curves of a figure differ in."""
    settings = list(dict.fromkeys(name for point, _ in members for name in point.values))
    return f" at each {listed(settings)}" if settings else ""


def _at_most(members: Members, most: int) -> Members:
    """Evenly spaced ones, the first and the last among them."""
    if len(members) <= most:
        return members
    return [members[round(i * (len(members) - 1) / (most - 1))] for i in range(most)]
