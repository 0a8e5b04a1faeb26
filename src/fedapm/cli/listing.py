"""What can be named: methods, data sets and networks, each with a line about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from fedapm.algorithms import METHODS, PRESETS, rows_of
from fedapm.core.split import Preset
from fedapm.data import DATA_SETS
from fedapm.models import MODELS

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
