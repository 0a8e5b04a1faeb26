"""The page of a sweep."""

from __future__ import annotations

from typing import Any

from fedapm.report.comparison import heading
from fedapm.report.comparison.sections import settings, warnings
from fedapm.report.evaluated_on import notices
from fedapm.report.numbers import listed
from fedapm.report.page import Page, Section
from fedapm.report.results import Results
from fedapm.report.sweep.drawings import MOST_CURVES, against_values, over_rounds
from fedapm.report.sweep.headline import sweep_sentences
from fedapm.report.sweep.runs import Sweep, written
from fedapm.report.sweep.warnings import sweep_problems

NO_PROBLEM = (
    "Every run finished, no client’s result was left out, and within a method only the seed and what was varied differ."
)


def render_sweep(sweep: Sweep) -> str:
    """The report of a sweep as HTML."""
    results = Results(sweep.methods, sweep.rows, sweep.runs)
    problems = sweep_problems(sweep)
    return Page(
        title=f"Sweep over {listed(sweep.axes)}",
        facts=heading.facts(results.groups),
        axes={name: [written(value) for value in values] for name, values in sweep.axes.items()},
        notice=notices(results.runs),
        headline=sweep_sentences(sweep, results.main),
        sections=_sections(sweep, results, problems),
        warnings=problems,
    ).render()


def _sections(sweep: Sweep, results: Results, problems: list[str]) -> list[Section]:
    """Every section in order. A new one needs a template and a line here."""
    common: dict[str, Any] = {"sweep": sweep, "results": results, "axes": sweep.axes, "written": written}
    values = common | {
        "figures": against_values(sweep, results),
        "any_level": any(set(point.values) != set(sweep.axes) for point in sweep.points),
        "chosen_on_test": results.evaluated_on != "validation" and len(sweep.points) > 1,
    }
    rounds = common | {
        "figures": over_rounds(sweep, results),
        "crowded": any(len(model.results) > MOST_CURVES for model in sweep.models),
        "most_curves": MOST_CURVES,
    }
    return [
        Section("values", "Against the value", "sweep_values.html.j2", values),
        Section("rounds", "Over rounds", "sweep_rounds.html.j2", rounds),
        Section("numbers", "Every number", "sweep_numbers.html.j2", common),
        warnings.build(problems, warnings.data_notices(results.runs), NO_PROBLEM),
        settings.section(results, sweep=True),
    ]
