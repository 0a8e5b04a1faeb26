"""What went wrong, and what a reader should know about the data."""

from __future__ import annotations

from collections.abc import Sequence

from fedapm.report.comparison import warnings
from fedapm.report.page import Section
from fedapm.report.results import Results

NO_PROBLEM = "Every run finished, no client’s result was left out, and all methods had the same data, seeds and rounds."


def problems(results: Results) -> list[str]:
    """One sentence for each thing that went wrong in a comparison."""
    return [
        *warnings.incomplete_runs(results.groups),
        *warnings.unequal_terms(results.groups),
        *warnings.dropped_clients(results.groups),
        *warnings.clients_without_loss(results.groups),
    ]


def section(results: Results) -> Section:
    """The section of a comparison."""
    notices = [*warnings.data_notices(results.runs), *warnings.capped_solves(results.groups)]
    return build(problems(results), notices, NO_PROBLEM)


def build(problems: Sequence[str], notices: Sequence[str], otherwise: str) -> Section:
    """The section of any page.

    Args:
        problems: What went wrong.
        notices: What did not, but matters for reading the numbers.
        otherwise: The sentence that stands there when nothing went wrong.
    """
    context = {"problems": problems, "notices": notices, "otherwise": otherwise}
    return Section("warnings", "Warnings", "warnings.html.j2", context)
