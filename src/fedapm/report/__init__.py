"""One HTML file that says how the runs in a folder went. It reads run folders and nothing else."""

from __future__ import annotations

from pathlib import Path

from fedapm.report.comparison.columns import Column, Estimate
from fedapm.report.comparison.page import render
from fedapm.report.comparison.sections.targets import (
    Target,
    TargetRow,
    TargetTable,
    named_targets,
    read_targets,
    target_tables,
)
from fedapm.report.comparison.summary import (
    SummaryRow,
    best_round_columns,
    filled_columns,
    main_column,
    summary_table,
)
from fedapm.report.split.page import write_split_report
from fedapm.report.study.page import write_study_report
from fedapm.report.sweep.runs import write_sweep_report
from fedapm.runs.files import write_atomic
from fedapm.runs.layout import REPORT, SPLIT_INFO, STUDY_INFO, SWEEP_INFO
from fedapm.runs.records import find_runs

__all__ = [
    "Column",
    "Estimate",
    "SummaryRow",
    "Target",
    "TargetRow",
    "TargetTable",
    "best_round_columns",
    "filled_columns",
    "main_column",
    "named_targets",
    "read_targets",
    "summary_table",
    "target_tables",
    "write_report",
]


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report over every run in a folder or below it, and return where it is.

    The file needs nothing beside it: no network, no script, no font. Equal runs give equal bytes. Targets are those
    of the comparison in the folder, if it was given any. A sweep, a search of the split and a study have reports of
    their own.
    """
    folder, out = Path(folder), Path(out) if out is not None else None
    if (folder / SWEEP_INFO).is_file():
        return write_sweep_report(folder, out)
    if (folder / SPLIT_INFO).is_file():
        return write_split_report(folder, out)
    if (folder / STUDY_INFO).is_file():
        return write_study_report(folder, out)
    path = out if out is not None else folder / REPORT
    write_atomic(path, render(find_runs(folder), read_targets(folder)))
    return path
