"""fedapm study: many data sets, methods and seeds from one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedapm.cli import options as opt
from fedapm.runs.layout import REPORT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedapm.experiments.study.estimate import Row

app = typer.Typer()


@app.command()
def study(
    file: Annotated[Path, typer.Argument(help="Study file (TOML).")],
    data_root: opt.DataRoot = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A case of the study; may be repeated. All if not given.")
    ] = None,
    cohort: Annotated[
        list[float] | None,
        typer.Option("--cohort", help="A share of clients of the study; may be repeated. All if not given."),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Measure a few rounds of each method, say how long it will take, and stop."),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Trials and runs at a time; as many as there is room for if not given."),
    ] = None,
    out: opt.Out = Path("runs/study"),
) -> None:
    """Choose the split, tune every method alike, compare, for every case; what was cut off goes on the same way."""
    from fedapm.cli.session import print_study, recorded
    from fedapm.experiments.study.run import StudyRun
    from fedapm.experiments.study.settings import read_study
    from fedapm.loggers.console import configure
    from fedapm.report.study.page import write_study_report
    from fedapm.runs.provenance import command_line

    command = command_line(sys.argv[1:])
    run = StudyRun(read_study(file), out, data_root, workers, tuple(cohort or ()), command)
    if estimate:
        configure(run_details=False)
        rows, missing = run.estimate(only or [])
        _print(rows, run.count, missing)
        return
    with recorded(out, report=write_study_report, card=False):
        run.run(only or [], lambda rows, count: _print(rows, count, {}, err=True))
    print_study(out, out / REPORT)


def _print(rows: Sequence[Row], workers: int, missing: Mapping[str, str], *, err: bool = False) -> None:
    """The estimate as a table."""
    from rich.table import Table

    from fedapm.experiments.study.estimate import duration
    from fedapm.loggers.console import stderr

    console = stderr() if err else opt.console()
    total, left = sum(row.total for row in rows), sum(row.left for row in rows)
    processes = f"{workers} {'process' if workers == 1 else 'processes'}"
    table = Table(
        title=f"About {duration(left / workers)} left with {processes}, {duration(left)} of processor time",
        caption="from a few measured rounds of each method",
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("part")
    for column in ("runs", "in all", "left"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.part, str(row.runs), duration(row.total), duration(row.left))
    if len(rows) > 1:
        table.add_row("all", str(sum(row.runs for row in rows)), duration(total), duration(left))
    console.print(table)
    for name, why in missing.items():
        console.print(f"left out: {name}: {why}", highlight=False, soft_wrap=True, markup=False)
