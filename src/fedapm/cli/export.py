"""fedapm export: one client's model out of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapm.cli.options import (
    print_line,
)

app = typer.Typer()


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
    print_line(f"{out}: {count} tensors of client {client}.")
