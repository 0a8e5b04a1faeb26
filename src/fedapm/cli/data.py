"""The command line for data sets: what there is, how to get it, how to prepare it, what it looks like."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedapm.cli.options import ImageEncoder, TextEncoder
from fedapm.errors import FedapmError, Interrupted
from fedapm.experiments import build
from fedapm.experiments.settings import DataSettings, Tables, merged, parse_assignment
from fedapm.loggers.console import ProgressDisplay

app = typer.Typer(name="data", help="Data sets: list, get, prepare, inspect.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Data set (see: fedapm data list).")]
Root = Annotated[
    Path | None,
    typer.Option("--root", "--data-root", help="Folder with the data sets' files; data if not given."),
]
Cache = Annotated[Path | None, typer.Option("--cache", help="Folder for features; fedapm-features in the root.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, such as data.clients=10; may be repeated.")
]


@app.command(name="list")
def list_() -> None:
    """List the data sets and how each is had."""
    from fedapm.data import DATA_SETS

    table = Table("name", "what it is", "how to get it", "features", box=None, pad_edge=False)
    for name, known in DATA_SETS.items():
        how = "bundled" if known.origin is None else "fedapm data get" if known.origin.archives else "by hand"
        table.add_row(name, known.about, how, ", ".join(known.encoders) or "none needed")
    _console().print(table)


@app.command()
def get(name: Name, root: Root = None) -> None:
    """Download a data set, or say what to fetch by hand and where to put it."""
    from fedapm.data import data_set
    from fedapm.data.download import download

    known = data_set(name)
    if known.origin is None:
        _say(f"{name} is bundled; there is nothing to get.")
        return
    folder = root or build.data_root(None) or build.DEFAULT_ROOT
    with ProgressDisplay() as progress:
        try:
            download(name, known.origin, folder, progress)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; the same command goes on from there.") from None
    _say(f"{name} is in {folder} ({known.origin.layout}). License: {known.origin.license}.")
    if known.encoders:
        _say(f"Next: fedapm data prepare {name} --root {folder}")


@app.command()
def prepare(
    name: Name,
    root: Root = None,
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    cache: Cache = None,
    fetch_weights: Annotated[
        bool, typer.Option("--fetch-weights", help="Allow the download of an encoder's weights.")
    ] = False,
) -> None:
    """Compute a data set's features once; what is there already is kept, and a cut-off run goes on."""
    from fedapm.data import data_set

    known = data_set(name)
    data = _settings(name, root, image_encoder, text_encoder, cache, None)
    began = time.monotonic()
    with ProgressDisplay() as progress:
        try:
            folder = known.prepare(replace(build.source(data), fetch_weights=fetch_weights, progress=progress))
        except KeyboardInterrupt:
            raise Interrupted("interrupted; the same command goes on from there.") from None
    if folder is None:
        _say(f"{name} is used as it is; there is nothing to prepare.")
        return
    _say(f"{name} is prepared in {folder} ({time.monotonic() - began:.0f} s).")


@app.command()
def inspect(
    name: Name,
    root: Root = None,
    out: Annotated[Path | None, typer.Option("--out", help="The picture; NAME-clients.png if not given.")] = None,
    assign: Assignments = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show who has which classes, in a table and in a picture."""
    from fedapm.experiments import inspect

    picture = out or Path(f"{name}-clients.png")
    inspect.check(picture)
    found = inspect.inspect(_settings(name, root, None, None, None, assign))
    inspect.draw(found, picture)
    if as_json:
        print(json.dumps(found.as_dict() | {"picture": str(picture)}, indent=2))
        return
    few = len(found.classes) <= 12
    table = Table("client", "train", "test", *(found.classes if few else ["classes"]), box=None, pad_edge=False)
    for k, client in enumerate(found.clients):
        counts = [str(c) if c else "·" for c in found.counts[:, k].tolist()]
        table.add_row(
            client,
            str(found.train[k]),
            str(found.test[k]),
            *(counts if few else [str(int((found.counts[:, k] > 0).sum()))]),
        )
    console = _console()
    console.print(table)
    _say(
        f"{found.samples:,} samples, {len(found.clients)} clients, {len(found.classes)} classes, "
        f"modalities: {', '.join(found.modalities)}"
    )
    for modality, clients in found.lacking.items():
        _say(f"without {modality}: {', '.join(clients) or 'nobody'}")
    if any(found.elsewhere):
        _say(
            f"{sum(found.elsewhere):,} of {sum(found.test):,} test samples are training samples of another client: "
            "scores flatter what is shared"
        )
    _say(f"Picture: {picture}")


def _settings(
    name: str,
    root: Path | None,
    image_encoder: str | None,
    text_encoder: str | None,
    cache: Path | None,
    assign: list[str] | None,
) -> DataSettings:
    given: Tables = {"data": {"name": name}}
    options = {"root": root, "image_encoder": image_encoder, "text_encoder": text_encoder, "cache": cache}
    given["data"] |= {key: str(value) for key, value in options.items() if value is not None}
    layers = [parse_assignment(text) for text in assign or []]
    for layer in layers:
        if "data" not in layer:
            raise FedapmError(f"only settings of [data] matter here, not [{next(iter(layer))}].")
    return build.resolve(merged(given, *layers)).data


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 200)


def _say(text: str) -> None:
    Console(soft_wrap=True).print(text, highlight=False, markup=False)
