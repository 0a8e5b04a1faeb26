"""What the closing phase changed: the personal part of every client once more, at the final shared model."""

from __future__ import annotations

from typing import Any

from fedapm.report.comparison.columns import Estimate
from fedapm.report.comparison.series import Series, score
from fedapm.report.page import Section
from fedapm.report.results import Results
from fedapm.runs.records import Run


def section(results: Results) -> Section | None:
    """The section; None where no run had a closing phase."""
    metric = results.main.metric
    rows = []
    for series in sorted(results.series, key=lambda series: list(results.by_name).index(series.name)):
        runs = [run for run in series.group.runs if _closing(run) is not None]
        before = {run.seed: score(_before(run, series), metric) for run in runs}
        after = {run.seed: score(series.last(run), metric) for run in runs}
        if runs:
            rows.append((series.name, series.group.complete, Estimate.of(before), Estimate.of(after)))
    if not rows:
        return None
    found = (_closing(run) for run in results.runs)
    epochs = sorted({int(closing["epochs"]) for closing in found if closing is not None})
    context = {"results": results, "rows": rows, "epochs": epochs}
    return Section("closing", "Closing phase", "closing.html.j2", context)


def _closing(run: Run) -> dict[str, Any] | None:
    return run.rounds[-1].get("closing") if run.rounds else None


def _before(run: Run, series: Series) -> dict[str, Any]:
    closing = _closing(run) or {}
    return dict((closing.get("before") or {}).get(series.view) or {})
