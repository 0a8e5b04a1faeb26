"""What private runs have spent: ε of clients, or of the samples at each site."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from fedapm.report.comparison.series import Series
from fedapm.report.page import Section
from fedapm.report.results import Results
from fedapm.report.settings import settings_of
from fedapm.runs.records import Run, spent_by_site

DELTA = 1e-5
"""δ where a run does not say another one."""


@dataclass(frozen=True)
class Spent:
    """A row: the runs of one method."""

    label: str
    complete: bool
    level: str
    delta: str
    epsilons: str
    """Of the client or of the samples that spent most, over all runs."""
    usual: str
    """The median over clients, and the range, where clients differ."""


def section(results: Results) -> Section | None:
    """The section; None where no run was private."""
    ordered = sorted(results.series, key=lambda series: list(results.by_name).index(series.name))
    rows = [row for series in ordered if (row := _row(series)) is not None]
    if not rows:
        return None
    levels = sorted({row.level for row in rows})
    return Section("privacy", "Privacy", "privacy.html.j2", {"results": results, "rows": rows, "levels": levels})


def _row(series: Series) -> Spent | None:
    group = series.group
    private = [run for run in group.runs if _table(run)]
    if not private:
        return None
    deltas = sorted({float(_table(run).get("delta", DELTA)) for run in private})
    sites = [float(row["epsilon"]) for run in private for row in spent_by_site(run)]
    clients = [spent for run in private if (spent := _of_clients(run)) is not None]
    found = sites or clients
    if not found:
        return None
    usual = f"{statistics.median(sites):.3g} ({min(sites):.3g} to {max(sites):.3g})" if sites else "the same bound"
    level = "each sample of a client" if sites else "each client"
    return Spent(series.name, group.complete, level, ", ".join(f"{d:g}" for d in deltas), f"{max(found):.3g}", usual)


def _table(run: Run) -> dict[str, Any]:
    return dict(settings_of(run).get("privacy", {}))


def _of_clients(run: Run) -> float | None:
    numbers = run.rounds[-1].get("server") if run.rounds else None
    spent = (numbers or {}).get("epsilon")
    return None if spent is None else float(spent)
