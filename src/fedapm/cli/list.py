"""fedapm list: what can be named, each with a line about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, get_args

import typer
from rich.table import Table

from fedapm.cli.options import console, print_line
from fedapm.errors import FedapmError, did_you_mean

app = typer.Typer()

Listing = tuple[tuple[str, ...], Sequence[tuple[str, ...]], str]
"""The headings, the rows below them, and a last line; empty for none."""


def methods() -> Listing:
    """The methods and then the named presets: when to use each, and the rows it has in a report."""
    from fedapm.algorithms import METHODS, PRESETS, rows_of

    kinds = [*METHODS.items(), *PRESETS.items()]
    # a method of another package may say nothing about that, and what it inherits is about another method
    rows = [(name, vars(kind).get("suits") or _line(kind), ", ".join(rows_of(kind))) for name, kind in kinds]
    return ("name", "use it when", "in reports"), rows, "Formulas, papers and traffic: docs/methods.md"


def data() -> Listing:
    """The data sets."""
    from fedapm.data import DATA_SETS

    return ("name", "what it is"), [(name, known.about) for name, known in DATA_SETS.items()], ""


def models() -> Listing:
    """The networks and their stages."""
    from fedapm.core.split import Preset
    from fedapm.models import MODELS

    rows = []
    for name, kind in MODELS.items():
        presets = [stage for stage in getattr(kind, "stages", {}) if stage in get_args(Preset)]
        rows.append((name, f"{_line(kind)} Presets: {', '.join(presets) or 'none'}."))
    return ("name", "what it is"), rows, ""


def _line(kind: type) -> str:
    return next(iter((kind.__doc__ or "").strip().splitlines()), "")


LISTINGS: dict[str, Callable[[], Listing]] = {"methods": methods, "data": data, "models": models}


@app.command(name="list")
def list_(what: Annotated[str, typer.Argument(help="methods, data or models")]) -> None:
    """List methods and when to use each, data sets or networks."""
    if what not in LISTINGS:
        raise FedapmError(f"cannot list {what!r}; {did_you_mean(what, LISTINGS)}")
    headings, rows, last = LISTINGS[what]()
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        # names are to be copied: they stay in one piece
        table.add_column(heading, no_wrap=heading == "name")
    for row in rows:
        table.add_row(*row)
    console().print(table)
    if last:
        print_line(last)
