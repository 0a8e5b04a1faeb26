"""What a search does with a space: match, draw and count its values, and read it from the command line.

``solver.lr=0.05,0.1`` lists values; ``algorithm.rho=log:0.001:0.3``, ``lin:0:1`` and ``int:1:5`` are ranges.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedapm.core.search_space import Choices, Dimension, FloatRange, IntRange, SearchSpace, Value, Values
from fedapm.errors import FedapmError

Params = dict[str, Value]
"""The values of one trial, by the names of the dimensions."""
LARGEST = 2**53
"""Beyond it, whole numbers and real ones are no longer the same."""
COUNTABLE = 2**62
"""Combinations that can be drawn by their number."""
FORM = "table.key=value,value or table.key=log:low:high (or lin:, int:)"


def get_setting(tables: Mapping[str, Any], setting: str) -> Any:
    """The value of ``table.key`` in some tables, or None."""
    value: Any = tables
    for part in setting.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def set_setting(tables: dict[str, Any], setting: str, value: Any) -> None:
    """Set ``table.key`` in some tables."""
    *outer, last = setting.split(".")
    for part in outer:
        tables = tables.setdefault(part, {})
    tables[last] = value


def match_value(values: Values, value: object) -> Value | None:
    """A setting's value as one of those that are searched; None where it is not among them. True is no number."""
    if isinstance(values, Choices):
        equal = (v for v in values.values if v == value and isinstance(v, bool) == isinstance(value, bool))
        return next(equal, None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not values.low <= value <= values.high:
        return None
    if isinstance(values, FloatRange):
        return float(value)
    return value if isinstance(value, int) else None


def sample_value(values: Values, stream: np.random.Generator) -> Value:
    """A random value."""
    match values:
        case Choices(listed):
            return listed[int(stream.integers(len(listed)))]
        case IntRange(low, high):
            return int(stream.integers(low, high + 1))
        case FloatRange(low, high, log=False):
            return float(stream.uniform(low, high))
        case FloatRange(low, high):
            return min(max(math.exp(stream.uniform(math.log(low), math.log(high))), low), high)


def corner_values(values: Values) -> tuple[Value, ...]:
    """Values that show whether a setting takes them all: every choice, or the ends and a number that is not whole."""
    match values:
        case Choices(listed):
            return listed
        case IntRange(low, high):
            return low, high
        case FloatRange(low, high):
            return low, high, low + (high - low) / math.pi


def sample(space: SearchSpace, stream: np.random.Generator) -> Params:
    """A random combination."""
    return {d.name: sample_value(d.values, stream) for d in space}


def grid_size(space: SearchSpace) -> int | None:
    """How many combinations there are; None where they cannot be counted, or are too many to be drawn by number."""
    listed = [_listed(d.values) for d in space]
    if any(values is None for values in listed):
        return None
    total = math.prod(len(values) for values in listed if values is not None)
    return total if total <= COUNTABLE else None


def combination(space: SearchSpace, index: int) -> Params:
    """One of the combinations of a space that can be counted; in their order the last setting changes fastest."""
    listed = [_listed(d.values) or () for d in space]
    at = np.unravel_index(index, [len(values) for values in listed])
    return {d.name: values[int(i)] for d, values, i in zip(space, listed, at, strict=True)}


def spread_combinations(space: SearchSpace, number: int, stream: np.random.Generator) -> list[int]:
    """Some of the combinations of a space that can be counted, in which every value of a setting is equally frequent.

    With few trials this leaves no value of a setting untried for want of luck.

    Args:
        space: A space with more combinations than that.
        number: How many; no two are the same.
        stream: Draws which values meet.

    Returns:
        Their numbers, as :func:`combination` takes them.
    """
    sizes = [len(_listed(d.values) or ()) for d in space]
    columns = []
    for size in sizes:
        if size > number:
            columns.append(stream.choice(size, number, replace=False))
            continue
        turns = [stream.permutation(size) for _ in range(-(-number // size))]
        columns.append(stream.permutation(np.concatenate(turns)[:number]))
    found: dict[int, None] = {}
    for index in np.ravel_multi_index(columns, sizes).tolist():
        while index in found:
            index = int(stream.integers(math.prod(sizes)))
        found[index] = None
    return list(found)


def _listed(values: Values) -> Sequence[Value] | None:
    match values:
        case Choices(listed):
            return listed
        case IntRange(low, high):
            return range(low, high + 1)
        case FloatRange():
            return None


def current_value(d: Dimension, tables: Mapping[str, Any]) -> Value | None:
    """The value that settings give a dimension now, if it is one that could be searched."""
    other = get_setting(tables, d.fallback) if d.fallback is not None else None
    value = get_setting(tables, d.setting)
    value = other if value is None else value
    value = d.unset if value is None else value
    if d.lists and isinstance(value, list | tuple):
        return json.dumps(list(value))
    if d.ratio and isinstance(value, int | float) and isinstance(other, int | float) and other:
        return value / other
    return None if d.ratio or not isinstance(value, Value) else value


def trial_settings(space: SearchSpace, params: Mapping[str, Value], base: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that searched values stand for.

    Args:
        space: What is searched.
        params: The values of a trial, by the names of the dimensions.
        base: The tables of settings that hold where nothing is searched.

    Returns:
        ``table.key`` to value, without settings that have no effect.
    """
    settings: dict[str, Any] = {
        d.setting: json.loads(str(params[d.name])) if d.lists else params[d.name] for d in space if not d.ratio
    }
    for d in space:
        if d.ratio and d.fallback is not None:
            other = settings.get(d.fallback, get_setting(base, d.fallback))
            settings[d.setting] = float(params[d.name]) * float(other)
    return with_effect(space, settings)


def with_effect(space: SearchSpace, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those whose condition does not hold."""
    idle = {d.setting for d in space if d.condition is not None and settings.get(d.condition[0]) != d.condition[1]}
    return {setting: value for setting, value in settings.items() if setting not in idle}


def parse_dimension(text: str) -> Dimension:
    """A setting and its values, as ``--search`` takes them."""
    setting, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values or "." not in setting or not all(setting.split(".")):
        raise FedapmError(f"--search takes {FORM}, not {text!r}.")
    kind, colon, ends = values.partition(":")
    if colon and kind in ("log", "lin", "int"):
        return Dimension(setting, _parse_range(text, kind, ends))
    return Dimension(setting, _parse_choices(text, values))


def _parse_range(text: str, kind: str, ends: str) -> FloatRange | IntRange:
    try:
        low, high = (int(end) if kind == "int" else float(end) for end in ends.split(":"))
    except ValueError:
        numbers = "two whole numbers" if kind == "int" else "two numbers"
        raise FedapmError(f"--search {text}: {kind}: takes {numbers}, as in {kind}:1:5.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise FedapmError(f"--search {text}: the first number must be below the second, and both finite.")
    if max(abs(low), abs(high)) > LARGEST:
        raise FedapmError(f"--search {text}: numbers beyond {LARGEST} cannot be searched.")
    if kind == "log" and low <= 0:
        raise FedapmError(f"--search {text}: a logarithmic range must begin above zero.")
    return IntRange(int(low), int(high)) if kind == "int" else FloatRange(low, high, kind == "log")


def _parse_choices(text: str, values: str) -> Choices:
    listed = tuple(_parse_value(text, part.strip()) for part in values.split(","))
    if len({*listed}) != len(listed):
        raise FedapmError(f"--search {text}: a value is there twice.")
    return Choices(listed)


def _parse_value(text: str, part: str) -> Value:
    try:
        value = tomllib.loads(f"value = {part}")["value"]
    except (ValueError, RecursionError):
        value = part
    if value == "" or not isinstance(value, Value) or (isinstance(value, float) and not math.isfinite(value)):
        raise FedapmError(f"--search {text}: {part!r} is no value to search; take numbers, words, true or false.")
    return value
