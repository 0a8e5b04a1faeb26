"""The clients that did not take part: how good a model they get from the run, before and after personalising."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedapm.report.comparison.columns import Estimate
from fedapm.report.comparison.series import Group, Series, score
from fedapm.report.numbers import finite
from fedapm.report.page import Section
from fedapm.report.results import Results
from fedapm.runs.records import unseen_clients


def section(results: Results) -> Section | None:
    """The section; None where no run held clients out."""
    rows = [row for group in results.groups if (row := _row(group, results.main.metric)) is not None]
    if not rows:
        return None
    rows.sort(key=lambda row: list(results.by_name).index(row["label"]))
    context = {"results": results, "rows": rows, "counts": sorted({count for row in rows for count in row["counts"]})}
    return Section("unseen", "Clients that did not take part", "unseen.html.j2", context, link="New clients")


def _row(group: Group, metric: str) -> dict[str, Any] | None:
    found = {run.seed: clients for run in group.runs if (clients := unseen_clients(run))}
    if not found or not group.views:
        return None
    # a new client is scored with the first of a method's models
    series = Series(group, group.views[0])
    taking_part = {run.seed: score(series.last(run), metric) for run in group.runs if run.seed in found}
    return {
        "label": series.name,
        "complete": group.complete,
        "counts": {len(clients) for clients in found.values()},
        "before": Estimate.of({seed: _mean(clients, "before", metric) for seed, clients in found.items()}),
        "after": Estimate.of({seed: _mean(clients, "after", metric) for seed, clients in found.items()}),
        "taking_part": Estimate.of(taking_part),
    }


def _mean(clients: Sequence[Mapping[str, Any]], when: Literal["before", "after"], metric: str) -> float | None:
    values = [value for client in clients if (value := finite(client[when].get(metric))) is not None]
    return statistics.fmean(values) if values else None
