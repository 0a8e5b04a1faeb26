"""Settings in other units: the same run with hyperparameters meant per client or as the paper has them.

docs/explanation/fedapm.md says why these powers of the number of clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedapm.tuning.space import looked_up

Units = Literal["client", "paper"]

STEPS = {"solver.lr": 1, "algorithm.lr_v": 1}
"""Step sizes of every method."""
OWN: dict[str, dict[str, int]] = {
    "fedapm": {"algorithm.rho": -1, "algorithm.sigma": -1, "algorithm.xi": -2},
    "fedadmm": {"algorithm.rho": -1},
    "fedprox": {"algorithm.mu": -1},
    "ditto": {"algorithm.lam": -1},
    "pfedme": {"algorithm.lam": -1, "algorithm.eta": 1},
    "lp-proj": {"algorithm.lam": -1},
}
"""A setting in the paper's units is the per-client one times this power of the number of clients m."""


def power(name: str, setting: str) -> int:
    """The power of m that takes a method's setting from per-client to the paper's units; 0 where it stays."""
    return {**STEPS, **OWN.get(name, {})}.get(setting, 0)


def converted(name: str, tables: Mapping[str, Any], units: Units, m: int) -> dict[str, Any]:
    """What settings must become for the same run in other units, as ``table.key`` to value; empty in their own."""
    if looked_up(tables, "engine.units") == units:
        return {}
    sign = 1 if units == "paper" else -1
    found = {}
    for setting in {**STEPS, **OWN.get(name, {})}:
        value = looked_up(tables, setting)
        if value is not None:
            found[setting] = scaled(float(value), sign * power(name, setting), m)
    return found


def scaled(value: float, power: int, m: int) -> float:
    """A value times a power of m, by a division where that is more exact."""
    return value * float(m**power) if power >= 0 else value / float(m**-power)
