"""The command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedapm.cli import data as cli_data
from fedapm.cli import flower as cli_flower
from fedapm.cli import paper as cli_paper
from fedapm.cli import sweep as cli_sweep
from fedapm.cli import tune as cli_tune
from fedapm.cli.options import (
    SIX,
    AsJson,
    Assignments,
    ConfigFile,
    Data,
    DataRoot,
    Device,
    EngineName,
    ImageEncoder,
    Log,
    Methods,
    Out,
    Rounds,
    Seeds,
    TextEncoder,
    TunedPath,
    Workers,
    common,
    console,
    layers,
    names,
    numbers,
    say,
)  # fmt: skip
from fedapm.errors import FedapmError, Interrupted, did_you_mean
from fedapm.experiments import build
from fedapm.experiments.settings import Tables, parse_assignment
from fedapm.loggers.console import configure

app = typer.Typer(
    help="Personalised federated learning that does not drift.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(cli_data.app, name="data")
app.add_typer(cli_flower.app, name="flower")
app.command()(cli_sweep.sweep)
app.command()(cli_tune.tune)
app.command()(cli_paper.paper)


@app.command()
def run(
    config: ConfigFile = None,
    data: Data = None,
    data_root: DataRoot = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="Method (see: fedapm list methods).")] = None,
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the run.")] = None,
    engine: EngineName = None,
    workers: Workers = None,
    device: Device = None,
    log: Log = None,
    out: Out = Path("runs/run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    assign: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train personal models with one method."""
    from fedapm.experiments.run import execute
    from fedapm.loggers import log_callbacks
    from fedapm.report import write_report
    from fedapm.report.card import write_card
    from fedapm.runs.provenance import command_line, timed

    options = common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    own: Tables = {"algorithm": {"name": algorithm}, "engine": {"seed": seed}}
    given = layers(config, assign, options, own)
    follow = log_callbacks(log, out)
    plan = build.plan(build.resolve(*given))
    try:
        with timed(out):
            execute(plan, out, resume=resume, callbacks=follow)
    except Interrupted as stop:
        raise Interrupted(f"{stop} Continue with --resume.") from None
    report = write_report(out)
    write_card(out, command_line(sys.argv[1:]))
    _show(out, report, as_json)


@app.command()
def compare(
    config: ConfigFile = None,
    data: Data = None,
    data_root: DataRoot = None,
    methods: Methods = SIX,
    seeds: Seeds = "0,1,2",
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    rounds: Rounds = None,
    engine: EngineName = None,
    workers: Workers = None,
    device: Device = None,
    tuned: TunedPath = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="A level to reach, as accuracy=0.62 or train_loss=0.5; may be repeated."),
    ] = None,
    log: Log = None,
    out: Out = Path("runs/compare"),
    assign: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train with several methods and seeds on the same clients; runs that are there already are kept."""
    from fedapm.experiments import compare as comparison
    from fedapm.loggers import log_callbacks
    from fedapm.report import write_report
    from fedapm.report.card import write_card
    from fedapm.runs.provenance import command_line, timed
    from fedapm.tuning import tuned_layer

    options = common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    chosen, repeats = names(methods), numbers(seeds)
    targets = comparison.parse_targets(target or [])
    best, origin = tuned_layer(tuned, chosen) if tuned is not None else ({}, None)
    explicit = comparison.laid(*map(parse_assignment, assign or []))
    plans = comparison.plans(chosen, repeats, *layers(config, None, options), best, explicit)
    configure(run_details=False)
    about = comparison.About(chosen, repeats, targets, origin)
    follow = log_callbacks(log, out)
    try:
        with timed(out):
            comparison.run_all(plans, out, callbacks=follow, about=about)
    except Interrupted as stop:
        raise Interrupted(f"{stop} The same command goes on from there.") from None
    report = write_report(out)
    write_card(out, command_line(sys.argv[1:]))
    _show(out, report, as_json)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a folder with several.")],
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file; report.html in the folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of finished runs."""
    from fedapm.report import write_report

    _show(folder, write_report(folder, out), as_json)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    client: Annotated[str, typer.Option("--client", help="The client's id.")],
    out: Annotated[Path, typer.Option("--out", help="The safetensors file to write.")],
    view: Annotated[str | None, typer.Option("--view", help="Which model, where a method has several.")] = None,
) -> None:
    """Write one client's model as a state dict that plain torch loads."""
    from fedapm.runs.export import export_model

    count = export_model(folder, client, out, view)
    say(f"{out}: {count} tensors of client {client}.")


@app.command(name="list")
def list_(what: Annotated[str, typer.Argument(help="methods, data or models")]) -> None:
    """List what can be named."""
    from fedapm.cli.listing import LISTINGS

    if what not in LISTINGS:
        raise FedapmError(f"cannot list {what!r}; {did_you_mean(what, LISTINGS)}")
    title, rows = LISTINGS[what]()
    table = Table("name", title, box=None, pad_edge=False)
    for name, about in rows:
        table.add_row(name, about)
    console().print(table)


def main() -> None:
    """Run the command line; what a person can mend is one line and exit code 2."""
    import click

    from fedapm.version import __version__

    if sys.argv[1:] == ["--version"]:
        print(f"fedapm {__version__}")
        return
    # one thread a process: more only spin-wait on models of this size unless the user asks for them
    if "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(1)
    configure()
    try:
        app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except Interrupted as stop:
        _fail(str(stop), 130)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted.", 130)
    except FedapmError as error:
        _fail(str(error), 2)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}.", 2)


def _show(folder: Path, report_path: Path, as_json: bool) -> None:
    from fedapm.report import summary_table
    from fedapm.runs.records import find_runs

    rows = summary_table(find_runs(folder))
    if as_json:
        print(json.dumps({"report": str(report_path), "rows": [row.as_dict() for row in rows]}, indent=2))
        return
    from fedapm.cli.tables import summary

    console().print(summary(rows))
    say(f"Report: {report_path}")


def _fail(message: str, code: int) -> None:
    print(f"fedapm: {message}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
