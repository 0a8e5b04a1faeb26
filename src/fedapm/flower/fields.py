"""Check the JSON fields of a message: a type, a range and a length for each, or an error that says which is wrong."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from fedapm.errors import FedapmError
from fedapm.flower.text import shown

LARGEST = 1e100
"""The largest number that is taken from another machine: a few of them can still be squared and added."""
LONGEST = 20_000
"""The longest list in a message."""


def table(value: Any, what: str, known: Collection[str], needed: Collection[str] = ()) -> Mapping[str, Any]:
    """An object with no key but the known ones.

    Args:
        value: What should be one.
        what: What it is, for the message.
        known: The keys it may have.
        needed: The keys it must have.

    Raises:
        FedapmError: If it is none, or its keys are others.
    """
    if not isinstance(value, Mapping):
        raise FedapmError(f"{what} should be a JSON object, not {shown(value)}.")
    for key in sorted(set(value) - set(known)):
        raise FedapmError(f"{what} holds an unknown field {shown(key)}.")
    for key in sorted(set(needed) - set(value)):
        raise FedapmError(f"{what} lacks the field {key!r}.")
    return value


def items(value: Any, what: str, most: int = LONGEST) -> list[Any]:
    """A list that is not too long."""
    if not isinstance(value, list):
        raise FedapmError(f"{what} should be a list, not {shown(value)}.")
    if len(value) > most:
        raise FedapmError(f"{what} should hold at most {most}, not {len(value)}.")
    return value


def text(value: Any, what: str, most: int) -> str:
    """A text that is not too long."""
    if not isinstance(value, str):
        raise FedapmError(f"{what} should be a text, not {shown(value)}.")
    if len(value) > most:
        raise FedapmError(f"{what} has {len(value)} characters; at most {most} are allowed.")
    return value


def flag(value: Any, what: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise FedapmError(f"{what} should be true or false, not {shown(value)}.")
    return value


def whole(value: Any, what: str, low: int, high: int) -> int:
    """A whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FedapmError(f"{what} should be a whole number from {low} to {high}, not {shown(value)}.")
    return value


def number(value: Any, what: str, low: float = -LARGEST, high: float = LARGEST, *, finite: bool = True) -> float:
    """A number in a range; with ``finite=False`` also NaN or an infinite one, as a loss that diverged is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FedapmError(f"{what} should be a number, not {shown(value)}.")
    if isinstance(value, float) and not math.isfinite(value) and not finite:
        return value
    # written so that NaN fails, and before the conversion, which fails for large whole numbers
    if not low <= value <= high:
        raise FedapmError(f"{what} should be from {low:g} to {high:g}, not {shown(value)}.")
    return float(value)
