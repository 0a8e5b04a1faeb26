"""The first page of ``fedapm paper``: the result of each step, with a link to its own report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from fedapm.report.comparison import heading
from fedapm.report.comparison.columns import metric_column
from fedapm.report.comparison.headline import headline_sentences
from fedapm.report.metrics import MAIN, MetricInfo, metrics_of
from fedapm.report.numbers import finite
from fedapm.report.page import Page, Section
from fedapm.report.results import Results
from fedapm.report.sweep.drawings import against_values
from fedapm.report.sweep.headline import sweep_sentences
from fedapm.report.sweep.runs import read_sweep
from fedapm.runs.files import write_atomic
from fedapm.runs.layout import (
    PAPER_COMPARE,
    PAPER_FRACTION,
    PAPER_RHO,
    PAPER_TUNE,
    REPORT,
    SWEEP_INFO,
    TUNE_INFO,
    TUNED,
)
from fedapm.runs.records import find_runs
from fedapm.runs.schema import TuneInfo, read

SWEEPS = {PAPER_RHO: "The penalty ρ", PAPER_FRACTION: "Clients in a round"}


def write_paper_report(folder: Path) -> Path:
    """Write the first page over the steps in a folder, and return where it is."""
    path = folder / REPORT
    write_atomic(path, render_paper(folder))
    return path


def render_paper(folder: Path) -> str:
    """The page as HTML."""
    results = Results.of(find_runs(folder / PAPER_COMPARE))
    search = read(TuneInfo, folder / PAPER_TUNE / TUNE_INFO)
    comparison = {"results": results, "link": f"{PAPER_COMPARE}/{REPORT}"}
    tuned = {"rows": tuned_rows(search), "budget": _budget(search), "link": f"{PAPER_TUNE}/{TUNED}"}
    return Page(
        title=f"{heading.title(results.groups)}: tuned alike and compared",
        facts=heading.facts(results.groups),
        headline=headline_sentences(results),
        sections=[
            Section("compared", "Comparison on test data", "paper_comparison.html.j2", comparison, link="Comparison"),
            Section("tuned", "Search on validation data", "paper_search.html.j2", tuned, link="Search"),
            *_sweeps(folder),
        ],
        footer='Versions, hardware, times and the command are in <a href="card.md">card.md</a>.',
    ).render()


def tuned_rows(record: Mapping[str, Any]) -> list[tuple[str | Markup, ...]]:
    """The rows of the table of the search; an unfinished search has none.

    Args:
        record: What ``tune.json`` holds.

    Returns:
        Label, trials, score of the best trial, score of the default settings and settings of the best trial.
    """
    name = str(record.get("arguments", {}).get("metric", MAIN[0]))
    metric = next((metric for metric in metrics_of([]) if metric.name == name), MetricInfo(name, name))
    return [_tuned_row(method, metric) for method in record.get("methods", {}).values()]


def _tuned_row(method: Mapping[str, Any], metric: MetricInfo) -> tuple[str | Markup, ...]:
    def score(value: Any) -> str:
        number = finite(value)
        if number is None:
            return "–"
        # the search maximizes, so it has the negative of a loss
        return metric_column(metric).write(number if metric.higher_is_better else -number)

    ended = ", ".join(f"{method[kind]} {kind}" for kind in ("pruned", "diverged") if method.get(kind))
    trials = escape(int(method["trials"]))
    if ended:
        trials += Markup(' <span class="std">{}</span>').format(ended)
    settings = ", ".join(f"{key} = {_written(value)}" for key, value in method.get("settings", {}).items())
    return (
        str(method["label"]),
        trials,
        score(method["best"]),
        score(method["default"]),
        settings or "unchanged",
    )


def _budget(record: Mapping[str, Any]) -> str:
    asked = record.get("arguments", {})
    return (
        f"{asked.get('trials')} trials of each method, {asked.get('rounds')} rounds a trial, evaluated by "
        f"{asked.get('metric')} on a part of each client’s training data"
    )


def _sweeps(folder: Path) -> list[Section]:
    sections: list[Section] = []
    for name, title in SWEEPS.items():
        if (folder / name / SWEEP_INFO).is_file():
            sweep = read_sweep(folder / name)
            results = Results(sweep.methods, sweep.rows, sweep.runs)
            context = {
                "sentences": sweep_sentences(sweep, results.main),
                "figures": against_values(sweep, results, f"{name}-"),
                "link": f"{name}/{REPORT}",
            }
            sections.append(Section(f"sweep-{len(sections) + 1}", title, "paper_sweep.html.j2", context))
    return sections


def _written(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
