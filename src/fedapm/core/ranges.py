"""The ranges that the annotations of settings declare, as ``rho: NonNegativeFloat``.

pydantic checks them in experiment files; :func:`check_ranges` does for objects made in Python.
"""

from __future__ import annotations

import math
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

LARGEST = 1e38
"""What numbers in single precision go up to."""


def check_ranges(settings: Any, table: str) -> None:
    """Check the fields of a dataclass against the ranges in their annotations.

    Args:
        settings: An object of a dataclass.
        table: Where the fields are in an experiment file, for the message.

    Raises:
        ValueError: Where a value is out of range. None and words such as ``"auto"`` are never checked.
    """
    for name, value in ((field.name, getattr(settings, field.name)) for field in fields(settings)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and LARGEST < abs(value) < math.inf:
            raise ValueError(f"{table}.{name} = {str(value)[:20]}: should be at most {LARGEST:g}.")
    for name, bounds in _bounds(type(settings)).items():  # type: ignore[arg-type]  # mypy: classes are hashable
        value = getattr(settings, name)
        for bound in () if value is None or isinstance(value, str) else bounds:
            if expected := _violated(value, bound):
                raise ValueError(f"{table}.{name} = {value}: should be {expected}.")


@cache
def _bounds(kind: type) -> dict[str, list[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    # a range may be one part of a union, as in PositiveFloat | None
    return {
        name: [bound for part in (hint, *get_args(hint)) for bound in getattr(part, "__metadata__", ())]
        for name, hint in hints.items()
    }


def _violated(value: Any, bound: Any) -> str | None:
    """The range that a value should be in, where it is not."""
    match bound:
        # not the opposite comparison, which NaN would pass
        case Gt(low) if not value > low:
            return f"greater than {low}"
        case Ge(low) if not value >= low:
            return f"greater than or equal to {low}"
        case Lt(high) if not value < high:
            return f"less than {high}"
        case Le(high) if not value <= high:
            return f"less than or equal to {high}"
    return None
