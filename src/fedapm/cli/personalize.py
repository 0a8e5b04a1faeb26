"""fedapm personalize: a model for clients that took no part in a run."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.table import Table

from fedapm.cli import options as opt
from fedapm.errors import FedapmError, Interrupted

if TYPE_CHECKING:
    from fedapm.core.metrics import Score
    from fedapm.experiments.new_client import NewClient

app = typer.Typer()


@app.command()
def personalize(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    unseen: Annotated[bool, typer.Option("--unseen", help="The clients that the run held out (data.unseen).")] = False,
    data: Annotated[
        str | None, typer.Option("--data", help="A data set or a data file; say which of its clients.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A file (.npz, .csv, .parquet) with one client's x and y.")
    ] = None,
    client: Annotated[list[str] | None, typer.Option("--client", help="A client's id; may be repeated.")] = None,
    data_root: opt.DataRoot = None,
    samples: Annotated[int | None, typer.Option("--samples", help="Train on so many samples only.")] = None,
    epochs: Annotated[int, typer.Option("--epochs", help="Most passes over a client's data.")] = 50,
    patience: Annotated[int, typer.Option("--patience", help="Epochs without a lower validation loss.")] = 5,
    validation: Annotated[
        float, typer.Option("--validation", help="Share of the samples that chooses the number of epochs.")
    ] = 0.2,
    correct: Annotated[
        bool, typer.Option("--correct", help="Also give the client a copy of the shared part of its own (FedAPM).")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the models, one file a client.")] = None,
    format: Annotated[str, typer.Option("--format", help="safetensors, onnx or torchscript.")] = "safetensors",
    as_json: opt.AsJson = False,
) -> None:
    """Give clients that took no part a personal model.

    The shared part of the run stays as it is.
    """
    from fedapm.experiments.load import load
    from fedapm.experiments.new_client import Options
    from fedapm.experiments.newcomer import personalize_client
    from fedapm.experiments.personalize import new_clients
    from fedapm.exports import known_format
    from fedapm.loggers.console import ProgressDisplay
    from fedapm.runs.folder import locked

    ending = known_format(format).endings[0]
    run, options = load(folder), Options(epochs, patience, validation, samples, correct)
    clients = new_clients(run, unseen=unseen, name=data, file=file, clients=client or (), root=data_root)
    paths = [out / f"client-{quote(one.id, safe='')}{ending}" for one in clients] if out is not None else []
    for path in paths:
        if path.exists():
            raise FedapmError(f"{path} exists already; give another folder.")
    trained = run.trained_run()
    made: list[NewClient] = []
    try:
        with locked(out) if out is not None else nullcontext(), ProgressDisplay() as progress:
            for one in clients:
                made.append(personalize_client(trained, one, options))
                progress.update("clients", len(made), len(clients))
                if paths:
                    made[-1].export(paths[len(made) - 1])
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted after {len(made)} of {len(clients)} clients.") from None
    if as_json:
        print(json.dumps([one.as_dict() for one in made], indent=2))
        return
    _print(made)
    if out is not None:
        opt.print_line(f"Models: {out}")


def _print(clients: list[NewClient]) -> None:
    """A line a client, and below what a person should know about the numbers."""
    name = next((n for n in ("accuracy", "test_loss") if clients[0].after.get(n) is not None), "test_loss")
    text = name.replace("_", " ")
    kinds = {client.judged_on for client in clients}
    table = Table(title=f"Scores on {' or '.join(sorted(kinds))} samples", title_justify="left", pad_edge=False)
    table.add_column("client")
    for column in ("samples", "epochs", f"{text} before", "after"):
        table.add_column(column, justify="right")
    table.add_column("start")
    for client in clients:
        before, after = (_number(scores.get(name)) for scores in (client.before, client.after))
        table.add_row(client.id, str(client.train), str(client.epochs), before, after, client.start)
    opt.console().print(table)
    # most clients of a command have the same to say
    said: dict[str, list[str]] = {}
    for client in clients:
        for note in client.notes:
            said.setdefault(note, []).append(client.id)
    for note, ids in said.items():
        who = "" if len(ids) == len(clients) else f"{', '.join(ids)}: "
        opt.print_line(f"{who}{note}")


def _number(value: Score) -> str:
    return "–" if value is None else f"{value:.3f}"
