"""The first page of ``fedapm paper``: what each step found, with the way to its own report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.report.comparison import heading
from fedapm.report.comparison.columns import metric_column
from fedapm.report.comparison.headline import lead_sentences
from fedapm.report.comparison.series import all_series, group_runs, same_data
from fedapm.report.comparison.summary import filled_columns, main_column, summary_table
from fedapm.report.evaluated_on import judged_by
from fedapm.report.figures.style import styles, swatch
from fedapm.report.metrics import MAIN, MetricInfo, metrics_of
from fedapm.report.numbers import finite
from fedapm.report.sweep.headline import sweep_sentences
from fedapm.report.sweep.page import Drawing, against_values
from fedapm.report.sweep.runs import read_sweep
from fedapm.report.templates import fill
from fedapm.runs.files import read_json, write_atomic
from fedapm.runs.layout import PAPER_COMPARE, PAPER_FRACTION, PAPER_RHO, PAPER_TUNE, REPORT, SWEEP_INFO, TUNE_INFO
from fedapm.runs.records import find_runs

SWEEPS = {PAPER_RHO: "The penalty ρ", PAPER_FRACTION: "Clients in a round"}


@dataclass(frozen=True)
class TunedRow:
    """What the search found for one method."""

    label: str
    trials: int
    ended: str
    """How many trials were cut short or diverged."""
    best: str
    default: str
    settings: str


@dataclass(frozen=True)
class SweepPart:
    """A sweep in short."""

    title: str
    link: str
    sentences: list[str]
    figures: list[Drawing]


def write_paper_report(folder: Path) -> Path:
    """Write the first page over the steps in a folder, and return where it is."""
    path = folder / REPORT
    write_atomic(path, render_paper(folder))
    return path


def render_paper(folder: Path) -> str:
    """The page as HTML."""
    runs = find_runs(folder / PAPER_COMPARE)
    groups = group_runs(runs)
    rows = summary_table(runs)
    main = main_column(rows)
    looks = styles(all_series(groups))
    search = read_json(folder / PAPER_TUNE / TUNE_INFO)
    return fill(
        "paper.html.j2",
        title=f"{heading.title(groups)}: tuned alike and compared",
        facts=heading.facts(groups, runs),
        lead=lead_sentences(rows, main, same_data(runs), judged_by(runs)),
        tuned=tuned_rows(search),
        budget=_budget(search),
        rows=rows,
        columns=filled_columns(rows),
        main=main,
        swatches={name: swatch(style) for name, style in looks.items()},
        several_seeds=any(len(row.seeds) > 1 for row in rows),
        sweeps=_sweeps(folder),
    )


def tuned_rows(record: Mapping[str, Any]) -> list[TunedRow]:
    """The rows of the table of the search; an unfinished search has none."""
    name = str(record.get("arguments", {}).get("metric", MAIN[0]))
    metric = next((metric for metric in metrics_of([]) if metric.name == name), MetricInfo(name, name))
    return [_tuned_row(found, metric) for found in record.get("methods", {}).values()]


def _tuned_row(found: Mapping[str, Any], metric: MetricInfo) -> TunedRow:
    def score(value: Any) -> str:
        number = finite(value)
        if number is None:
            return "–"
        # the search makes everything larger, so it has the negative of a loss
        return metric_column(metric).write(number if metric.higher_is_better else -number)

    ended = [f"{found[kind]} {kind}" for kind in ("pruned", "diverged") if found.get(kind)]
    settings = ", ".join(f"{key} = {_written(value)}" for key, value in found.get("settings", {}).items())
    return TunedRow(
        str(found["label"]),
        int(found["trials"]),
        ", ".join(ended),
        score(found["best"]),
        score(found["default"]),
        settings or "as they were",
    )


def _budget(record: Mapping[str, Any]) -> str:
    asked = record.get("arguments", {})
    return (
        f"{asked.get('trials')} trials of each method, {asked.get('rounds')} rounds a trial, judged by "
        f"{asked.get('metric')} on a part of each client’s training data"
    )


def _sweeps(folder: Path) -> list[SweepPart]:
    found = []
    for name, title in SWEEPS.items():
        if (folder / name / SWEEP_INFO).is_file():
            sweep = read_sweep(folder / name)
            main = main_column([row for point in sweep.points for row in point.rows])
            figures = against_values(sweep, f"{name}-")
            found.append(SweepPart(title, f"{name}/{REPORT}", sweep_sentences(sweep, main), figures))
    return found


def _written(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
