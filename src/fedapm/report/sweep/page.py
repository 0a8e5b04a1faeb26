"""The page of a sweep: its figures, its table and its sentences, handed to the template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from fedapm.report.comparison import heading, settings, warnings
from fedapm.report.comparison.columns import DRIFT, Column
from fedapm.report.comparison.curves import curve, of_metric
from fedapm.report.comparison.series import all_series
from fedapm.report.comparison.summary import SummaryRow, filled_columns, main_column
from fedapm.report.evaluated_on import judged_by, validation_sentence, wording
from fedapm.report.figures.style import Style, styles, swatch
from fedapm.report.figures.sweep import RoundLine, ValueLine, draw_rounds, draw_values, value_styles
from fedapm.report.metrics import featured, metrics_of
from fedapm.report.numbers import listed, lower_first
from fedapm.report.sweep.axis import ValueAxis, value_axis
from fedapm.report.sweep.headline import sweep_sentences
from fedapm.report.sweep.runs import Model, Point, Sweep, written
from fedapm.report.sweep.warnings import sweep_troubles
from fedapm.report.templates import fill

MOST_CURVES = 12

Say = Callable[[str], str]
Results = Sequence[tuple[Point, SummaryRow]]
Panel = tuple[str, list[tuple[str, Style, Results]]]
"""A figure's title and its lines: name, look and results."""


@dataclass(frozen=True)
class Drawing:
    """A figure and what it is called."""

    title: str
    svg: Markup


def render_sweep(sweep: Sweep) -> str:
    """The whole report of a sweep as HTML."""
    runs = sweep.runs
    rows = [row for point in sweep.points for row in point.rows]
    say = wording(judged_by(runs))
    main = main_column(rows)
    columns = [replace(column, title=say(column.title)) for column in filled_columns(rows)]
    looks = styles(all_series(sweep.methods))
    return fill(
        "sweep.html.j2",
        say=say,
        title=f"Sweep over {listed(list(sweep.axes))}",
        facts=heading.facts(sweep.methods, runs),
        axes={name: [written(value) for value in values] for name, values in sweep.axes.items()},
        validation=validation_sentence(runs),
        lead=sweep_sentences(sweep, replace(main, title=say(main.title))),
        picked_with_test=judged_by(runs) != "validation" and len(sweep.points) > 1,
        figures=against_values(sweep),
        curves=_over_rounds(sweep, main, say),
        most_curves=MOST_CURVES,
        crowded=any(len(model.results) > MOST_CURVES for model in sweep.models),
        points=sweep.points,
        columns=columns,
        main=main,
        written=written,
        swatches={name: swatch(style) for name, style in looks.items()},
        any_level=any(set(point.values) != set(sweep.axes) for point in sweep.points),
        several_seeds=any(len(row.seeds) > 1 for row in rows),
        troubles=sweep_troubles(sweep),
        remarks=warnings.how_judged(runs),
        sizes=settings.client_sizes(runs),
        versions=settings.versions(runs),
        configs=settings.configs(sweep.methods),
    )


def against_values(sweep: Sweep, prefix: str = "") -> list[Drawing]:
    """One figure a quantity with a line a model; where more is varied, one a model with a line for the rest.

    The ids in the figures begin with the prefix, so that several sweeps can be on one page.
    """
    rows = [row for point in sweep.points for row in point.rows]
    say, looks = wording(judged_by(sweep.runs)), styles(all_series(sweep.methods))
    setting, *others = sweep.axes
    axis = value_axis(setting, sweep.axes[setting])
    main = main_column(rows)
    drawn = [*(metric.name for metric in featured(metrics_of(sweep.runs), main.field)), DRIFT.field]
    drawings = []
    for column in [main, *(column for column in filled_columns(rows) if column.field in drawn and column != main)]:
        titled = replace(column, title=say(column.title))
        models = sweep.models
        if column == DRIFT:
            models = [replace(model, name=model.results[0][0].group.label) for model in models if model.first]
        panels = [_split(model, others) for model in models] if others else [_together(models, looks)]
        for number, (panel, members) in enumerate(panels):
            lines = [_line(name, style, results, column, setting, axis) for name, style, results in members]
            lines = [line for line in lines if line.cells or line.diverged]
            if any(line.cells for line in lines):
                svg = draw_values(titled, axis, lines, f"{prefix}values-{column.field}-{number}")
                drawings.append(Drawing(f"{titled.title}{panel and f', {panel}'}", svg))
    return drawings


def _together(models: Sequence[Model], looks: Mapping[str, Style]) -> Panel:
    return "", [(model.name, looks[model.results[0][1].label], model.results) for model in models]


def _split(model: Model, others: Sequence[str]) -> Panel:
    """A model's results apart by everything that is varied besides the axis."""
    found: dict[str, list[tuple[Point, SummaryRow]]] = {}
    for point, row in model.results:
        rest = {name: point.values[name] for name in others if name in point.values}
        found.setdefault(replace(point, values=rest).place or model.name, []).append((point, row))
    looks = value_styles(len(found))
    return model.name, [(name, looks[i], results) for i, (name, results) in enumerate(found.items())]


def _line(name: str, style: Style, results: Results, column: Column, setting: str, axis: ValueAxis) -> ValueLine:
    placed = [(point, row.cell(column)) for point, row in results if setting in point.values]
    levels = [row.cell(column) for point, row in results if setting not in point.values and point.counts]
    return ValueLine(
        name,
        style,
        at=[(axis.place(p.values[setting]), cell) for p, cell in placed if p.counts and cell.values],
        diverged=[axis.place(point.values[setting]) for point, _ in placed if point.state == "diverged"],
        level=next((cell for cell in levels if cell.values), None),
    )


def _over_rounds(sweep: Sweep, main: Column, say: Say) -> list[Drawing]:
    """The course of the main score and of the training loss, one figure a model with a curve for each point."""
    metrics = featured(metrics_of(sweep.runs), main.field)
    metrics.sort(key=lambda metric: metric.name != main.field)
    quantities = [of_metric(metric) for metric in metrics]
    drawings = []
    for number, model in enumerate(sweep.models):
        shown = _at_most([result for result in model.results if result[0].state != "diverged"], MOST_CURVES)
        looks = value_styles(len(shown))
        for quantity in quantities:
            lines = []
            for (point, row), style in zip(shown, looks, strict=True):
                series = next(one for one in point.series() if one.view == row.view)
                course = curve(series, quantity)
                if course is not None:
                    ending = "" if point.counts else " (unfinished)"
                    lines.append(RoundLine(f"{_short_place(sweep, point)}{ending}", style, course))
            if lines:
                titled = replace(quantity, axis=say(quantity.axis))
                svg = draw_rounds(titled, lines, f"rounds-{quantity.key}-{number}")
                drawings.append(Drawing(f"{model.name}: {lower_first(say(quantity.title))}{_each(shown)}", svg))
    return drawings


def _short_place(sweep: Sweep, point: Point) -> str:
    """A point in a legend: the bare value where one setting is varied, which the figure's caption names."""
    if not point.values:
        return point.group.label
    return written(next(iter(point.values.values()))) if len(sweep.axes) == 1 else _abbreviated(point)


def _each(shown: Results) -> str:
    """Which setting the curves of a figure differ in."""
    settings = list(dict.fromkeys(name for point, _ in shown for name in point.values))
    return f" at each {listed(settings)}" if settings else ""


def _abbreviated(point: Point) -> str:
    return ", ".join(f"{name.rsplit('.', 1)[-1]} {written(value)}" for name, value in point.values.items())


def _at_most(results: Results, most: int) -> Results:
    """Evenly spaced ones, the first and the last among them."""
    if len(results) <= most:
        return results
    return [results[round(i * (len(results) - 1) / (most - 1))] for i in range(most)]
