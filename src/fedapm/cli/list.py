"""fedapm list: what can be named, each with a line about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, get_args

import typer
from rich.table import Table

from fedapm.algorithms import METHODS, PRESETS, rows_of
from fedapm.cli.options import console
from fedapm.core.split import Preset
from fedapm.data import DATA_SETS
from fedapm.errors import FedapmError, did_you_mean
from fedapm.models import MODELS

app = typer.Typer()

STAGES = get_args(Preset)
Listing = tuple[str, list[tuple[str, str]]]


def methods() -> Listing:
    """The methods, the rows each has in a report, and what it computes; then the named presets."""
    known = [(name, f"{', '.join(rows_of(kind))}: {_line(kind)}") for name, kind in METHODS.items()]
    return "rows in a report, and what it computes", [
        *known,
        *((name, f"{kind.label}: {_line(kind)}") for name, kind in PRESETS.items()),
    ]


def data() -> Listing:
    """The data sets."""
    return "what it is", [(n, known.about) for n, known in DATA_SETS.items()]


def models() -> Listing:
    """The networks and their stages."""
    rows = []
    for name, kind in MODELS.items():
        presets = [stage for stage in getattr(kind, "stages", {}) if stage in STAGES]
        rows.append((name, f"{_line(kind)} Presets: {', '.join(presets) or 'none'}."))
    return "what it is", rows


def _line(kind: type) -> str:
    return next(iter((kind.__doc__ or "").strip().splitlines()), "")


LISTINGS: dict[str, Callable[[], Listing]] = {"methods": methods, "data": data, "models": models}


@app.command(name="list")
def list_(what: Annotated[str, typer.Argument(help="methods, data or models")]) -> None:
    """List what can be named."""
    if what not in LISTINGS:
        raise FedapmError(f"cannot list {what!r}; {did_you_mean(what, LISTINGS)}")
    title, rows = LISTINGS[what]()
    table = Table("name", title, box=None, pad_edge=False)
    for name, about in rows:
        table.add_row(name, about)
    console().print(table)
