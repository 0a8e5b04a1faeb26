"""The command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedapm import cli_data, experiment
from fedapm.cli_data import ImageEncoder, TextEncoder
from fedapm.errors import FedapmError, Interrupted, did_you_mean
from fedapm.settings import Tables, parse_assignment, read_toml

app = typer.Typer(
    help="Personalised federated learning that does not drift.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(cli_data.app, name="data")

ConfigFile = Annotated[Path | None, typer.Argument(help="Experiment file (TOML).", show_default=False)]
Data = Annotated[str | None, typer.Option("--data", help="Data set (see: fedapm list data).")]
DataRoot = Annotated[Path | None, typer.Option("--data-root", help="Folder with the data set's files.")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Number of rounds.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for the results.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, as table.key=value; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="How clients are run: auto, sequential, vectorised or processes.")
]
Workers = Annotated[int | None, typer.Option("--workers", help="Worker processes.")]
Device = Annotated[str | None, typer.Option("--device", help="Where to compute: cpu, cuda, …")]


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
    out: Out = Path("runs/run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    assign: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train personal models with one method."""
    from fedapm.execution import execute
    from fedapm.report import write_report

    common = _common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    own: Tables = {"algorithm": {"name": algorithm}, "engine": {"seed": seed}}
    given = _layers(config, assign, common, own)
    plan = experiment.plan(experiment.resolve(*given))
    try:
        execute(plan, out, resume=resume, warn=_warn, tell=_note)
    except Interrupted as stop:
        raise Interrupted(f"{stop} Continue with --resume.") from None
    report = write_report(out)
    _show(out, report, as_json)


@app.command()
def compare(
    config: ConfigFile = None,
    data: Data = None,
    data_root: DataRoot = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas, or all.")
    ] = "fedapm,fedalt,fedsim,fedavg,fedprox,local",
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas.")] = "0,1,2",
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    rounds: Rounds = None,
    engine: EngineName = None,
    workers: Workers = None,
    device: Device = None,
    out: Out = Path("runs/compare"),
    assign: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train with several methods and seeds on the same clients; runs that are there already are kept."""
    from fedapm import compare as comparison
    from fedapm.algorithms import METHODS
    from fedapm.report import write_report

    given = _layers(
        config, assign, _common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    )
    names = list(METHODS) if methods == "all" else [n.strip() for n in methods.split(",") if n.strip()]
    try:
        numbers = [int(s) for s in seeds.split(",") if s.strip()]
    except ValueError:
        raise FedapmError(f"--seeds takes whole numbers separated by commas, not {seeds!r}.") from None
    try:
        comparison.run_all(comparison.plans(names, numbers, *given), out, show=True, warn=_warn)
    except Interrupted as stop:
        raise Interrupted(f"{stop} The same command goes on from there.") from None
    report = write_report(out)
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
    from fedapm.export import export_model

    count = export_model(folder, client, out, view)
    Console().print(f"{out}: {count} tensors of client {client}.", highlight=False, soft_wrap=True, markup=False)


@app.command(name="list")
def list_(what: Annotated[str, typer.Argument(help="methods, data or models")]) -> None:
    """List what can be named."""
    from fedapm.listing import LISTINGS

    if what not in LISTINGS:
        raise FedapmError(f"cannot list {what!r}; {did_you_mean(what, LISTINGS)}")
    title, rows = LISTINGS[what]()
    table = Table("name", title, box=None, pad_edge=False)
    for name, about in rows:
        table.add_row(name, about)
    _console().print(table)


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


def _common(
    data: str | None,
    root: Path | None,
    image_encoder: str | None,
    text_encoder: str | None,
    rounds: int | None,
    engine: str | None,
    workers: int | None,
    device: str | None,
) -> Tables:
    return {
        "data": {
            "name": data,
            "root": root and str(root),
            "image_encoder": image_encoder,
            "text_encoder": text_encoder,
        },
        "engine": {"rounds": rounds, "engine": engine, "workers": workers, "device": device},
    }


def _layers(config: Path | None, assign: list[str] | None, *options: Tables) -> list[Tables]:
    """The experiment file, then the options that were given, then what --set says."""
    given = [{name: _given(table) for name, table in layer.items() if _given(table)} for layer in options]
    return [*([read_toml(config)] if config is not None else []), *given, *map(parse_assignment, assign or [])]


def _given(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _show(folder: Path, report_path: Path, as_json: bool) -> None:
    from fedapm.records import find_runs
    from fedapm.report import summary_table

    rows = summary_table(find_runs(folder))
    if as_json:
        print(json.dumps({"report": str(report_path), "rows": [row.as_dict() for row in rows]}, indent=2))
        return
    from fedapm.terminal import summary

    console = _console()
    console.print(summary(rows))
    console.print(f"Report: {report_path}", highlight=False, soft_wrap=True, markup=False)


def _console() -> Console:
    # a pipe has no width; do not fold tables to 80 columns there
    return Console(width=None if sys.stdout.isatty() else 140)


def _warn(message: str) -> None:
    Console(stderr=True).print(f"fedapm: {message}", highlight=False, soft_wrap=True, markup=False)


def _note(message: str) -> None:
    Console(stderr=True).print(message, highlight=False, soft_wrap=True, markup=False)


def _fail(message: str, code: int) -> None:
    print(f"fedapm: {message}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
