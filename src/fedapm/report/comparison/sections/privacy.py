"""What private runs have spent: ε of clients, or of the samples at each site."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedapm.report.comparison.series import Series
from fedapm.report.page import Section
from fedapm.report.results import Results
from fedapm.report.settings import settings_of
from fedapm.runs.records import Run, spent_by_site

DELTA = 1e-5
"""δ where a run does not say another one."""
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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
    budget: str
    """The ε that ends a run, or a client's part in it, and how that went."""


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
    usual = f"{statistics.median(sites):.3g} ({min(sites):.3g} to {max(sites):.3g})" if sites else "the same for all"
    level = "each sample of a client" if sites else "each client"
    return Spent(
        series.name,
        group.complete,
        level,
        ", ".join(_small(delta) for delta in deltas),
        f"{max(found):.3g}",
        usual,
        _budget(private),
    )


def _budget(runs: Sequence[Run]) -> str:
    """What the runs were allowed, and what came of it."""
    budgets = sorted({float(b) for run in runs if (b := _table(run).get("epsilon")) is not None})
    if not budgets:
        return "none"
    allowed = ", ".join(f"{budget:g}" for budget in budgets)
    ended = [run for run in runs if str(run.info.get("stopped") or "").startswith("the privacy budget")]
    if ended:
        after = sorted({run.rounds[-1]["round"] for run in ended})
        which = "" if len(ended) == len(runs) else f" in {len(ended)} of {len(runs)} runs"
        return f"{allowed}, spent{which} after round {' to '.join(str(r) for r in (after[0], after[-1])[: len(after)])}"
    # who is named there takes part no more
    spent = max((len(run.rounds[-1].get("abstaining") or ()) for run in runs if run.rounds), default=0)
    return f"{allowed}, spent by {spent} of {len(runs[0].info['clients'])} clients" if spent else allowed


def _small(delta: float) -> str:
    """δ as a power of ten where it is one."""
    exponent = round(math.log10(delta))
    return f"10{str(exponent).translate(RAISED)}" if math.isclose(delta, 10.0**exponent) else f"{delta:g}"


def _table(run: Run) -> dict[str, Any]:
    return dict(settings_of(run).get("privacy", {}))


def _of_clients(run: Run) -> float | None:
    numbers = run.rounds[-1].get("server") if run.rounds else None
    spent = (numbers or {}).get("epsilon")
    return None if spent is None else float(spent)
