"""fedapm export: one client's model out of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapm.cli.options import ModelFormat, print_line
from fedapm.errors import FedapmError

app = typer.Typer()


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    client: Annotated[str, typer.Option("--client", help="The client's id.")],
    file: Annotated[Path | None, typer.Argument(help="The file to write.", show_default=False)] = None,
    format: ModelFormat = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write, in place of FILE.")] = None,
    view: Annotated[str | None, typer.Option("--view", help="Which model, where a method has several.")] = None,
) -> None:
    """Write one client's model with all that is needed to use it: as numbers, for onnxruntime or for TorchScript."""
    from fedapm.experiments.load import load

    path = out if out is not None else file
    if path is None or (out is not None and file is not None):
        raise FedapmError("say once which file to write: --out client-3.onnx.")
    written = load(folder).write_export(client, path, format, view)
    print_line(f"{path}: {written}.")
