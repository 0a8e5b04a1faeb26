"""What a sweep varies: a setting and its values, as ``--vary algorithm.rho=0.01,0.1`` gives them."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from fedapm.algorithms import METHODS, PRESETS, hyperparameters, method
from fedapm.errors import FedapmError

LONGEST = 40
"""Letters of a value that a folder's name may have."""


@dataclass(frozen=True)
class Axis:
    """A setting, as ``table.key``, and the values it takes."""

    setting: str
    values: tuple[Any, ...]

    @property
    def table(self) -> str:
        """The table of the setting."""
        return self.setting.split(".")[0]

    @property
    def common(self) -> bool:
        """Whether it is in a table that all methods read, and not in that of a single method."""
        return self.table not in METHODS | PRESETS

    def concerns(self, name: str) -> bool:
        """Whether a method has this setting."""
        if self.table == "algorithm":
            return self.setting.split(".")[1] in hyperparameters(method(name))
        return self.common or self.table == name

    def layer(self, value: Any) -> dict[str, Any]:
        """The setting at one value, as tables to lay over others."""
        for part in reversed(self.setting.split(".")):
            value = {part: value}
        return dict(value)


def parse_vary(text: str) -> Axis:
    """A setting and its values, given as ``table.key=v1,v2,…``; values are TOML, or else plain strings."""
    setting, equals, listed = (part.strip() for part in text.partition("="))
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)+", setting):
        raise FedapmError(f"--vary takes table.key=v1,v2,…, such as algorithm.rho=0.01,0.1, not {text!r}.")
    for reserved, instead in {"engine.seed": "--seeds", "algorithm.name": "--methods"}.items():
        if setting == reserved:
            raise FedapmError(f"{reserved} is varied with {instead}, not with --vary.")
    values = _values(listed)
    if not values:
        raise FedapmError(f"--vary {setting} has no values; give them as {setting}=v1,v2,….")
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise FedapmError(f"--vary {setting}: {value} is not a number to run with.")
        if [_same(value, other) for other in values].count(True) > 1:
            raise FedapmError(f"--vary {setting} has the value {value_text(value)} twice.")
    return Axis(setting, tuple(values))


def value_text(value: Any) -> str:
    """A value as a person writes it, fit for the name of a folder."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if re.fullmatch(r"\w[\w.+-]*", text) and len(text) <= LONGEST:
        return text
    # two values that a folder's name cannot tell apart are told apart by their digest
    short = re.sub(r"[^\w.+-]+", "-", text).strip("-.")[:LONGEST]
    return f"{short}~{hashlib.sha256(text.encode()).hexdigest()[:6]}".lstrip("~")


def shown_value(value: Any) -> str:
    """A value as a person reads it; a split is called by the parts that are personal."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return " + ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _values(listed: str) -> list[Any]:
    try:
        tables = tomllib.loads(f"values = [\n{listed}\n]")
        if set(tables) == {"values"}:
            return list(tables["values"])
    except (ValueError, RecursionError):
        pass
    return [_value(piece.strip()) for piece in listed.split(",") if piece.strip()]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _same(left: Any, right: Any) -> bool:
    """1 and 1.0 are the same to run with; true and 1 are not."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
