"""What the analysis says about the runs: curvature and bounds, the Lyapunov function, residuals, disagreement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedapm.report.comparison.curves import Quantity, curve, of_round
from fedapm.report.comparison.series import Series
from fedapm.report.figures.curves import Line, draw_curves, lines_of
from fedapm.report.figures.style import COLORS, MARKERS, Style
from fedapm.report.numbers import slug
from fedapm.report.page import Figure, Section
from fedapm.report.results import Results
from fedapm.runs.records import Run
from fedapm.theory.course import course
from fedapm.theory.findings import read_study
from fedapm.theory.sentences import number, sentences
from fedapm.theory.study import Study


@dataclass(frozen=True)
class StudyRow:
    """One run's line in the table."""

    name: str
    swatch: str
    """The model whose style the run has."""
    study: Study

    def constant(self, name: str) -> tuple[str, str]:
        """The median of a constant over clients, and from where to where it goes."""
        values = [value for c in self.study.constants if (value := getattr(c, name)) is not None]
        if not values:
            return "–", ""
        spread = f"{number(min(values))} to {number(max(values))}" if len(values) > 1 else ""
        return number(statistics.median(values)), spread

    def penalty(self, name: str) -> tuple[str, str]:
        """A penalty in use, and the least that is demanded."""
        used, least = self.study.in_use, self.study.demanded
        if used is None:
            return "–", ""
        return number(getattr(used, name)), f"demanded {number(getattr(least, name))}" if least is not None else ""

    @property
    def disagreement(self) -> str:
        """How much clients disagree."""
        if self.study.cancels:
            return "∞"
        return number(self.study.disagreement) if self.study.disagreement is not None else "–"


def section(results: Results) -> Section | None:
    """The section; None where no run has anything to say."""
    rows, remarks = [], []
    for series in _first_models(results):
        for run in series.group.runs:
            study, curve_ = read_study(run.path), course(run.rounds)
            name = f"{series.group.label}, seed {run.seed}"
            if study is not None:
                rows.append(StudyRow(name, series.name, study))
            if found := sentences(study, curve_):
                remarks.append((name, found))
    figures = [figure for figure in (_lyapunov(results), *_residuals(results), _disagreement(results)) if figure]
    if not rows and not remarks and not figures:
        return None
    context = {"results": results, "rows": rows, "remarks": remarks, "figures": figures}
    return Section("theory", "Theory", "theory.html.j2", context)


def _first_models(results: Results) -> list[Series]:
    """One model of each method: what is told here belongs to the method."""
    first: dict[str, Series] = {}
    for series in results.series:
        first.setdefault(series.group.label, series)
    return list(first.values())


def _lyapunov(results: Results) -> Figure | None:
    quantity = Quantity("lyapunov", "Lyapunov function", "above its lowest value", _above_lowest, per_view=False)
    lines = lines_of(quantity, results.series, results.styles)
    if not lines:
        return None
    return Figure("The Lyapunov function above its lowest value, by round", draw_curves(quantity, lines, False))


def _above_lowest(_: Series, run: Run) -> dict[int, float]:
    """The function above its lowest value: on a log scale a linear rate is a straight line."""
    found = course(run.rounds)
    if found is None:
        return {}
    lowest = min(found.values)
    return {found.first + k: value - lowest for k, value in enumerate(found.values) if value > lowest}


RESIDUALS: tuple[tuple[str, str, str], ...] = (
    ("primal ‖uᵢ − ū‖", "theory", "primal"),
    ("dual ρ‖ū⁺ − ū‖", "theory", "dual"),
    ("‖∇ᵤL‖", "stationarity", "u"),
    ("‖∇ᵥf‖", "stationarity", "v"),
    ("‖Σ πᵢ‖", "stationarity", "dual"),
)
"""What each line is called, and where a record has it. ``consensus`` is the primal residual in another scale."""


def _residuals(results: Results) -> list[Figure]:
    """The residuals of each method that has them, in one figure each."""
    figures = []
    for series in _first_models(results):
        label = series.group.label
        quantity = Quantity(f"residuals-{slug(label)}", f"Residuals of {label}", "residual", _field("theory", "primal"))
        lines = _residual_lines(series)
        if lines:
            figures.append(Figure(f"Residuals of {label} by round", draw_curves(quantity, lines, False)))
    return figures


def _residual_lines(series: Series) -> Sequence[Line]:
    lines = []
    for place, (name, table, key) in enumerate(RESIDUALS):
        values = curve(series, Quantity(key, name, "", _field(table, key)))
        if values is not None:
            lines.append(Line(name, Style(COLORS[place], MARKERS[place], position=place), values, False))
    # the stationary point alone has a figure among the curves
    return lines if any(line.name == RESIDUALS[0][0] for line in lines) else ()


def _disagreement(results: Results) -> Figure | None:
    quantity = Quantity(
        "disagreement", "Disagreement", "disagreement at ū", _field("theory", "disagreement"), per_view=False
    )
    lines = lines_of(quantity, results.series, results.styles)
    if not lines:
        return None
    return Figure("How much clients disagree about the shared part, by round", draw_curves(quantity, lines, False))


def _field(table: str, key: str) -> Callable[[Series, Run], dict[int, float]]:
    """Read a number of a record; a residual that is zero has no place on a log scale."""

    def value(row: dict[str, Any]) -> Any:
        return (row.get(table) or {}).get(key) or None

    return of_round(value)
