"""fedapm report: the report of runs that are there."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fedapm.cli.options import AsJson
from fedapm.errors import FedapmError
from fedapm.runs.layout import SPLIT_INFO, STUDY_INFO

app = typer.Typer()


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a folder with several.")],
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file; report.html in the folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of finished runs."""
    from fedapm.cli.session import print_search, print_study, print_summary
    from fedapm.report import write_report
    from fedapm.runs.folder import locked

    show = print_search if (folder / SPLIT_INFO).is_file() else print_summary
    show = print_study if (folder / STUDY_INFO).is_file() else show
    if not folder.is_dir():
        raise FedapmError(f"{folder} is not a folder.")
    # a report that is written elsewhere only reads, and may show how far a run is
    advice = "wait for it, or write the report elsewhere with --out"
    with locked(folder, advice=advice) if out is None else nullcontext():
        written = write_report(folder, out)
    show(folder, written, as_json)
