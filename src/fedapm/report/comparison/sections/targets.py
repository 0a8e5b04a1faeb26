"""How many rounds and megabytes each method needs to reach a level."""

from __future__ import annotations

from collections.abc import Mapping

from fedapm.report.comparison.columns import SENT
from fedapm.report.comparison.targets import choose_targets, longest_gap, named_targets, target_tables
from fedapm.report.metrics import BUILT_IN
from fedapm.report.page import Section
from fedapm.report.results import Results


def section(results: Results, levels: Mapping[str, float]) -> Section | None:
    """The section; None for a single model without targets.

    Args:
        results: The comparison.
        levels: The targets it was given; without any, some are chosen from the runs.
    """
    targets = named_targets(results.runs, levels)
    if not targets and len(results.rows) > 1:
        names = {*BUILT_IN, results.main.field}
        targets = choose_targets(results.runs, [metric for metric in results.featured if metric.name in names])
    tables, unknown = target_tables(results.runs, targets)
    if not tables and not unknown:
        return None
    context = {
        "results": results,
        "tables": tables,
        "unknown": unknown,
        "chosen": not levels,
        "gap": longest_gap(results.runs),
        "sent": SENT,
    }
    return Section("targets", "Rounds and megabytes to a target", "targets.html.j2", context, link="Targets")
