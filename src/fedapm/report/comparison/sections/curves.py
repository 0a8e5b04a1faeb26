"""Every quantity over rounds and bytes, and the drift at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedapm.report.comparison.curves import OF_ROUNDS, Quantity, of_metric
from fedapm.report.comparison.drift import final_drifts
from fedapm.report.comparison.sections.published import published_data, published_lines
from fedapm.report.figures.curves import MOST_POINTS, draw_curves, lines_of
from fedapm.report.figures.drift import draw_drift
from fedapm.report.page import Figure, Section
from fedapm.report.results import Results


@dataclass(frozen=True)
class Course:
    """A quantity against rounds, and against bytes where anything was sent."""

    title: str
    figures: list[Figure]
    published: bool
    """Whether the figure against rounds also has published curves."""


def section(results: Results) -> Section:
    """The section."""
    quantities = (*map(of_metric, results.featured), *OF_ROUNDS)
    courses = [course for quantity in quantities if (course := _course(results, quantity)) is not None]
    context = {
        "results": results,
        "courses": courses,
        "drift": drift_bars(results),
        "silent": [group.label for group in results.groups if group.sends_nothing and group.views],
        "thinned": any(len(run.rounds) > MOST_POINTS for run in results.runs),
        "most_points": MOST_POINTS,
    }
    return Section("curves", "Curves", "curves.html.j2", context)


def drift_bars(results: Results) -> dict[str, Any] | None:
    """Drift at the end in the order of the summary; None where fewer than two methods have any."""
    place = {row.label: position for position, row in enumerate(results.rows)}
    first: dict[str, str] = {}
    for series in sorted(results.series, key=lambda series: place[series.name]):
        first.setdefault(series.group.label, series.name)
    order = list(first)
    groups = sorted((g for g in results.groups if g.label in first), key=lambda group: order.index(group.label))
    drifts = final_drifts(groups, first)
    if drifts is None or len(drifts.methods) < 2:
        return None
    spread = "; whiskers: standard deviation over seeds" if results.several_seeds else ""
    rounds = "round" if drifts.rounds == "1" else "rounds"
    caption = f"Mean drift of the last {drifts.rounds} {rounds}{spread}"
    return {"figure": Figure(caption, draw_drift(drifts, results.styles)), "without": drifts.without}


def _course(results: Results, quantity: Quantity) -> Course | None:
    quantity = replace(quantity, title=results.reword(quantity.title), axis=results.reword(quantity.axis))
    lines = lines_of(quantity, results.series, results.styles)
    if not lines:
        return None
    last = max(line.curve.rounds[-1] for line in lines)
    published = published_lines(published_data(results.runs), quantity, results.series, results.styles, last)
    caption = f"{quantity.title} by round{'; thin broken lines: published' if published else ''}"
    figures = [Figure(caption, draw_curves(quantity, lines, False, published))]
    if any(not line.sends_nothing and line.curve.megabytes[-1] > 0 for line in lines):
        svg = draw_curves(quantity, lines, True, published)
        figures.append(Figure(f"{quantity.title} by megabytes sent", svg))
    return Course(quantity.title, figures, bool(published))
