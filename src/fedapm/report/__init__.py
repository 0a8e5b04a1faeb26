"""One HTML file that says how the runs in a folder went. It reads run folders and nothing else."""

from __future__ import annotations

from pathlib import Path

from fedapm.files import write_atomic
from fedapm.records import REPORT, find_runs
from fedapm.report.page import render
from fedapm.report.summary import (
    COLUMNS,
    Column,
    Estimate,
    SummaryRow,
    filled_columns,
    main_column,
    summary_table,
)

__all__ = [
    "COLUMNS",
    "Column",
    "Estimate",
    "SummaryRow",
    "filled_columns",
    "main_column",
    "summary_table",
    "write_report",
]


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report over every run in a folder or below it, and return where it is.

    The file needs nothing beside it: no network, no script, no font. Equal runs give equal bytes.
    """
    path = out if out is not None else folder / REPORT
    write_atomic(path, render(find_runs(folder)))
    return path
