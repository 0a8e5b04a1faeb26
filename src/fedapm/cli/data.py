"""The command line for data sets: list, download, prepare and inspect them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedapm.cli.options import ImageEncoder, TextEncoder, assignments, console, named_data, print_line
from fedapm.errors import FedapmError, Interrupted

if TYPE_CHECKING:
    from fedapm.experiments.settings import DataSettings, Tables

app = typer.Typer(name="data", help="Data sets and your own data: list, get, prepare, inspect.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Data set (see: fedapm data list).")]
Named = Annotated[
    str,
    typer.Argument(metavar="NAME|FILE|CONFIG", help="Data set, data file of your own, or experiment file (TOML)."),
]
Root = Annotated[
    Path | None,
    typer.Option("--root", "--data-root", help="Folder with the data sets' files; data if not given."),
]
Cache = Annotated[Path | None, typer.Option("--cache", help="Folder for features; fedapm-features in the root.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, such as data.clients=10; may be repeated.")
]


TABLE_WIDTH = 200
"""Columns of a table that is not printed on a terminal."""


@app.command(name="list")
def list_() -> None:
    """List the data sets and how to get them."""
    from fedapm.data import DATA_SETS

    table = Table("name", "what it is", "how to get it", "features", box=None, pad_edge=False)
    for name, entry in DATA_SETS.items():
        how = "bundled" if entry.origin is None else "fedapm data get" if entry.origin.archives else "by hand"
        features = ", ".join(entry.encoders) or "none needed"
        versions = ", ".join(str(version.features_name) for version in entry.feature_versions())
        table.add_row(name, entry.about, how, f"{features} (or {versions})" if versions else features)
    console(TABLE_WIDTH).print(table)


@app.command()
def get(name: Name, root: Root = None) -> None:
    """Download a data set, or explain how to get it by hand."""
    from fedapm.data import data_set
    from fedapm.data.download import download
    from fedapm.experiments import build
    from fedapm.loggers.console import ProgressDisplay

    entry = data_set(name)
    if entry.origin is None:
        print_line(f"{name} is bundled; there is nothing to get.")
        return
    folder = root or build.data_root(None) or build.DEFAULT_ROOT
    with ProgressDisplay() as progress:
        try:
            download(name, entry.origin, folder, progress)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; run the same command again to resume.") from None
    print_line(f"{name} is in {folder} ({entry.origin.layout}). License: {entry.origin.license}.")
    if entry.encoders:
        print_line(f"Next: fedapm data prepare {name} --root {folder}")


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
    assign: Assignments = None,
) -> None:
    """Compute a data set's features; existing ones are kept, and interrupted work resumes."""
    from fedapm.data import data_set
    from fedapm.experiments import build
    from fedapm.loggers.console import ProgressDisplay

    data = _settings(name, root, image_encoder, text_encoder, cache, assign)
    entry = data_set(name, data.features)
    start = time.monotonic()
    with ProgressDisplay() as progress:
        try:
            folder = entry.prepare(replace(build.source(data), fetch_weights=fetch_weights, progress=progress))
        except KeyboardInterrupt:
            raise Interrupted("interrupted; run the same command again to resume.") from None
    if folder is None:
        print_line(f"{name} is used as it is; there is nothing to prepare.")
        return
    print_line(f"{name} is prepared in {folder} ({time.monotonic() - start:.0f} s).")


@app.command()
def inspect(
    name: Named,
    root: Root = None,
    out: Annotated[Path | None, typer.Option("--out", help="The picture; NAME-clients.png if not given.")] = None,
    assign: Assignments = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show the classes of each client in a table and a picture."""
    from fedapm.experiments import inspect

    settings = _settings(name, root, None, None, None, assign)
    picture = out or Path(f"{settings.name}-clients.png")
    inspect.figure_format(picture)
    inspection = inspect.inspect(settings)
    inspect.draw(inspection, picture)
    if as_json:
        print(json.dumps(inspection.as_dict() | {"picture": str(picture)}, indent=2))
        return
    few = len(inspection.classes) <= 12
    table = Table("client", "train", "test", *(inspection.classes if few else ["classes"]), box=None, pad_edge=False)
    for k, client in enumerate(inspection.clients):
        counts = [str(c) if c else "·" for c in inspection.counts[:, k].tolist()]
        table.add_row(
            client,
            str(inspection.train[k]),
            str(inspection.test[k]),
            *(counts if few else [str(int((inspection.counts[:, k] > 0).sum()))]),
        )
    console(TABLE_WIDTH).print(table)
    modalities = f", modalities: {', '.join(inspection.modalities)}" if inspection.modalities else ""
    print_line(f"{inspection.samples:,} samples, {inspection.who}, {len(inspection.classes)} classes{modalities}")
    if inspection.unseen:
        print_line(f"held out: {', '.join(inspection.unseen)}")
    for modality, clients in inspection.lacking.items():
        print_line(f"without {modality}: {', '.join(clients) or 'nobody'}")
    if any(inspection.elsewhere):
        print_line(
            f"{sum(inspection.elsewhere):,} of {sum(inspection.test):,} test samples are training samples of another "
            "client: this inflates the scores of methods that share parameters"
        )
    print_line(f"Picture: {picture}")


def _settings(
    name: str,
    root: Path | None,
    image_encoder: str | None,
    text_encoder: str | None,
    cache: Path | None,
    assign: list[str] | None,
) -> DataSettings:
    from fedapm.experiments import build
    from fedapm.experiments.settings import merged, read_toml

    config = Path(name).suffix == ".toml"
    tables: Tables = dict(read_toml(Path(name))) if config else {"data": named_data(name)}
    tables.setdefault("data", {})
    options = {"root": root, "image_encoder": image_encoder, "text_encoder": text_encoder, "cache": cache}
    tables["data"] = tables["data"] | {key: str(value) for key, value in options.items() if value is not None}
    layers = assignments(assign)
    for layer in layers:
        if "data" not in layer:
            raise FedapmError(f"only settings of [data] apply here, not [{next(iter(layer))}].")
    return build.resolve(merged(tables, *layers)).data
