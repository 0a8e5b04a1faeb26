"""fedapm init: a project with data and a network of one's own to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedapm.cli.options import print_line

app = typer.Typer()


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="Folder for the project.", show_default=False)]) -> None:
    """Write a project to start from.

    It has an experiment file, a data function and a network, and runs as it is.
    """
    from fedapm.experiments.starter import write_starter

    files = write_starter(folder)
    for file in files:
        print_line(str(file))
    config = shlex.quote(str(files[0]))
    print_line(f"Look at the data: fedapm data inspect {config}")
    print_line(f"Train: fedapm run {config}")
