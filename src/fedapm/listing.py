"""What can be named: methods, data sets and networks, each with a line about it."""

from __future__ import annotations

from collections.abc import Callable

from fedapm.algorithms import METHODS
from fedapm.data import DATA_SETS
from fedapm.models import MODELS

Listing = tuple[str, list[tuple[str, str]]]


def methods() -> Listing:
    """The methods and what each computes."""
    return "what it computes", [(n, f"{kind.label}: {_line(kind)}") for n, kind in METHODS.items()]


def data() -> Listing:
    """The data sets."""
    return "what it is", [(n, known.about) for n, known in DATA_SETS.items()]


def models() -> Listing:
    """The networks and their stages."""
    return "what it is", [
        (n, f"{_line(kind)} Presets: {', '.join(getattr(kind, 'stages', {})) or 'none'}.") for n, kind in MODELS.items()
    ]


def _line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


LISTINGS: dict[str, Callable[[], Listing]] = {"methods": methods, "data": data, "models": models}
