"""Search spaces: settings by name, each with the values it may take, and the little language that gives them.

``solver.lr=0.05,0.1`` lists values; ``algorithm.rho=log:0.001:0.3``, ``lin:0:1`` and ``int:1:5`` are ranges.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedapm.errors import FedapmError

Value = bool | int | float | str
Params = dict[str, Value]
LARGEST = 2**53
"""Beyond it, whole numbers and real ones are no longer the same."""
COUNTABLE = 2**62
"""Combinations that can be drawn by their number."""
FORM = "table.key=value,value or table.key=log:low:high (or lin:, int:)"


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Value, ...]

    def match(self, value: object) -> Value | None:
        """The one that equals a value, if one does; true is no number."""
        same = (v for v in self.values if v == value and isinstance(v, bool) == isinstance(value, bool))
        return next(same, None)

    def draw(self, stream: np.random.Generator) -> Value:
        """Any value, all alike."""
        return self.values[int(stream.integers(len(self.values)))]

    def corners(self) -> tuple[Value, ...]:
        """Values that show whether all are good: every one of them."""
        return self.values

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


@dataclass(frozen=True)
class Range:
    """A real number in an interval, evenly distributed or its logarithm."""

    low: float
    high: float
    log: bool = False

    def match(self, value: object) -> Value | None:
        """A value as a number of this interval, if it is one."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if self.low <= value <= self.high else None

    def draw(self, stream: np.random.Generator) -> Value:
        """Any number of the interval."""
        if not self.log:
            return float(stream.uniform(self.low, self.high))
        drawn = math.exp(stream.uniform(math.log(self.low), math.log(self.high)))
        return min(max(drawn, self.low), self.high)

    def corners(self) -> tuple[Value, ...]:
        """Both ends, and a number between that is hardly a whole one."""
        return self.low, self.high, self.low + (self.high - self.low) / math.pi

    def __str__(self) -> str:
        return f"{'log' if self.log else 'lin'}:{self.low}:{self.high}"


@dataclass(frozen=True)
class Whole:
    """A whole number between two, both included."""

    low: int
    high: int

    def match(self, value: object) -> Value | None:
        """A value as one of these numbers, if it is one."""
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if self.low <= value <= self.high else None

    def draw(self, stream: np.random.Generator) -> Value:
        """Any of the numbers, all alike."""
        return int(stream.integers(self.low, self.high + 1))

    def corners(self) -> tuple[Value, ...]:
        """Both ends."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"int:{self.low}:{self.high}"


Values = Choice | Range | Whole


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched."""

    setting: str
    """Its name, as ``table.key``."""
    values: Values
    otherwise: str | None = None
    """The setting that holds where this one is not given, as the solver's step size where there is no lr_v."""
    ratio: bool = False
    """Whether the values are multiples of that other setting."""
    where: tuple[str, Value] | None = None
    """Another setting and the value it must have for this one to matter."""

    @property
    def name(self) -> str:
        """What is searched, for records: the setting, or its ratio to another."""
        return f"{self.setting}/{self.otherwise}" if self.ratio else self.setting

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the tables and of the key."""
        return tuple(self.setting.split("."))

    def present(self, tables: Mapping[str, Any]) -> Value | None:
        """The value that settings have now, if they have one that could be searched."""
        other = looked_up(tables, self.otherwise) if self.otherwise is not None else None
        value = looked_up(tables, self.setting)
        value = other if value is None else value
        if self.ratio and isinstance(value, int | float) and isinstance(other, int | float) and other:
            return value / other
        return None if self.ratio or not isinstance(value, Value) else value


Space = tuple[Dimension, ...]


def looked_up(tables: Mapping[str, Any], setting: str) -> Any:
    """The value of ``table.key`` in some tables, or None."""
    found: Any = tables
    for part in setting.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def put(tables: dict[str, Any], setting: str, value: Any) -> None:
    """Set ``table.key`` in some tables."""
    *outer, last = setting.split(".")
    for part in outer:
        tables = tables.setdefault(part, {})
    tables[last] = value


def settings_of(space: Space, params: Mapping[str, Value], base: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that searched values stand for, as ``table.key`` to value, over those of a base."""
    found: dict[str, Any] = {d.setting: params[d.name] for d in space if not d.ratio}
    for d in space:
        if d.ratio and d.otherwise is not None:
            other = found.get(d.otherwise, looked_up(base, d.otherwise))
            found[d.setting] = float(params[d.name]) * float(other)
    return effective(space, found)


def effective(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that do not matter where the others are as they are."""
    idle = {d.setting for d in space if d.where is not None and settings.get(d.where[0]) != d.where[1]}
    return {setting: value for setting, value in settings.items() if setting not in idle}


def size(space: Space) -> int | None:
    """How many combinations there are; None where they cannot be counted, or are too many to be drawn by number."""
    total = 1
    for d in space:
        if isinstance(d.values, Range):
            return None
        total *= len(d.values.values) if isinstance(d.values, Choice) else d.values.high - d.values.low + 1
    return total if total <= COUNTABLE else None


def combination(space: Space, index: int) -> Params:
    """One of the combinations of a space that can be counted; in their order the last setting changes fastest."""
    found: Params = {}
    for d in reversed(space):
        assert not isinstance(d.values, Range)
        values = d.values.values if isinstance(d.values, Choice) else range(d.values.low, d.values.high + 1)
        index, at = divmod(index, len(values))
        found[d.name] = values[at]
    return {d.name: found[d.name] for d in space}


def draw(space: Space, stream: np.random.Generator) -> Params:
    """A random combination."""
    return {d.name: d.values.draw(stream) for d in space}


def parse(text: str) -> Dimension:
    """A setting and its values, as a user writes them."""
    setting, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values or "." not in setting or not all(setting.split(".")):
        raise FedapmError(f"--search takes {FORM}, not {text!r}.")
    kind, colon, rest = values.partition(":")
    if colon and kind in ("log", "lin", "int"):
        return Dimension(setting, _range(text, kind, rest))
    return Dimension(setting, _choice(text, values))


def _range(text: str, kind: str, rest: str) -> Range | Whole:
    ends = rest.split(":")
    try:
        low, high = (int(end) if kind == "int" else float(end) for end in ends)
    except ValueError:
        numbers = "two whole numbers" if kind == "int" else "two numbers"
        raise FedapmError(f"--search {text}: {kind}: takes {numbers}, as in {kind}:1:5.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise FedapmError(f"--search {text}: the first number must be below the second, and both finite.")
    if max(abs(low), abs(high)) > LARGEST:
        raise FedapmError(f"--search {text}: numbers beyond {LARGEST} cannot be searched.")
    if kind == "log" and low <= 0:
        raise FedapmError(f"--search {text}: a logarithmic range must begin above zero.")
    return Whole(int(low), int(high)) if kind == "int" else Range(low, high, kind == "log")


def _choice(text: str, values: str) -> Choice:
    found = [_value(text, part.strip()) for part in values.split(",")]
    if len({*found}) != len(found):
        raise FedapmError(f"--search {text}: a value is there twice.")
    return Choice(tuple(found))


def _value(text: str, part: str) -> Value:
    try:
        value = tomllib.loads(f"value = {part}")["value"]
    except tomllib.TOMLDecodeError:
        value = part
    if value == "" or not isinstance(value, Value) or (isinstance(value, float) and not math.isfinite(value)):
        raise FedapmError(f"--search {text}: {part!r} is no value to search; take numbers, words, true or false.")
    return value
