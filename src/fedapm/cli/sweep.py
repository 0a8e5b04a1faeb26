"""fedapm sweep: the same experiment at several values of a setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedapm.cli import options as opt
from fedapm.runs.layout import REPORT

if TYPE_CHECKING:
    from fedapm.report.sweep.runs import Sweep

app = typer.Typer()

Vary = Annotated[
    list[str],
    typer.Option("--vary", help="A setting and its values, as table.key=v1,v2,…; repeated, all combinations are run."),
]

SHOWN = ("train_loss", "drift")
"""What the table on the terminal has beside the main score; the report has everything."""


@app.command()
def sweep(
    vary: Vary,
    config: opt.ConfigFile = None,
    data: opt.Data = None,
    data_root: opt.DataRoot = None,
    methods: opt.Methods = "fedapm",
    seeds: opt.Seeds = "0,1,2",
    image_encoder: opt.ImageEncoder = None,
    text_encoder: opt.TextEncoder = None,
    rounds: opt.Rounds = None,
    engine: opt.EngineName = None,
    workers: opt.RunsAtOnce = None,
    device: opt.Device = None,
    tuned: opt.TunedPath = None,
    log: opt.Log = None,
    out: opt.Out = Path("runs/sweep"),
    assign: opt.Assignments = None,
    as_json: opt.AsJson = False,
) -> None:
    """Train at several values of a setting.

    Runs that are there already are kept.
    """
    from fedapm.cli.session import recorded
    from fedapm.experiments import compare
    from fedapm.experiments.sweep import members, run_all
    from fedapm.experiments.vary import parse_vary
    from fedapm.loggers import log_callbacks
    from fedapm.report.sweep.runs import read_sweep
    from fedapm.tuning import tuned_layer

    options = opt.common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    chosen = opt.names(methods)
    explicit = compare.overlay(*opt.assignments(assign))
    best = tuned_layer(tuned, chosen)[0] if tuned is not None else {}
    axes = [parse_vary(text) for text in vary]
    runs = members(axes, chosen, opt.numbers(seeds), *opt.layers(config, None, options), best, explicit)
    callbacks = log_callbacks(log, out)
    with recorded(out):
        run_all(axes, runs, out, callbacks=callbacks, workers=workers)
    result, report = read_sweep(out), out / REPORT
    if as_json:
        print(json.dumps({"report": str(report), "rows": result.as_rows()}, indent=2))
        return
    opt.console().print(_table(result))
    opt.print_line(f"Report: {report}")


def _table(sweep: Sweep) -> Table:
    """One line for each model and value, as the report's table has them."""
    from fedapm.report import filled_columns, main_column
    from fedapm.report.sweep.runs import written

    rows = [row for point in sweep.points for row in point.rows]
    columns = [column for column in filled_columns(rows) if column.field in (main_column(rows).field, *SHOWN)]
    table = Table(title="Client means after the last round", title_justify="left", pad_edge=False)
    table.add_column("method", no_wrap=True)
    for setting in sweep.axes:
        table.add_column(setting, justify="right", no_wrap=True)
    for column in columns:
        table.add_column(column.title + (f", {column.unit}" if column.unit else ""), justify="right", no_wrap=True)
    for point in sweep.points:
        at = [written(point.values[setting]) if setting in point.values else "–" for setting in sweep.axes]
        if not point.counts:
            table.add_row(point.group.label, *at, point.state)
            continue
        for row in point.rows:
            cells = [(column, row.cell(column)) for column in columns]
            table.add_row(row.label, *at, *(f"{c.mean_text(cell)} {c.std_text(cell)}".strip() for c, cell in cells))
    return table
