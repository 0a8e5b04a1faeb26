"""Conversion of settings between units: per client, or as the paper has them, for the same run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedapm.core.algorithm import Algorithm
from fedapm.core.search_space import Units
from fedapm.tuning.space import get_setting

COMMON_POWERS = {"solver.lr": 1}
"""What depends on the units with every method, as in ``Algorithm.unit_powers``."""


def unit_powers(method: type[Algorithm]) -> dict[str, int]:
    """The powers of m that take a method's settings, as ``table.key``, from per-client to the paper's units."""
    return COMMON_POWERS | dict(method.unit_powers)


def converted(method: type[Algorithm], tables: Mapping[str, Any], units: Units, m: int) -> dict[str, Any]:
    """What settings must become for the same run in other units.

    Args:
        method: The method they are for.
        tables: All settings of an experiment.
        units: The units to convert to.
        m: The number of clients.

    Returns:
        The settings that change, as ``table.key`` to value; nothing where the experiment has these units already.
    """
    if get_setting(tables, "engine.units") == units:
        return {}
    sign = 1 if units == "paper" else -1
    return {
        setting: scaled(float(value), sign * power, m)
        for setting, power in unit_powers(method).items()
        # words such as "auto" have no units
        if isinstance(value := get_setting(tables, setting), int | float)
    }


def scaled(value: float, power: int, m: int) -> float:
    """A value times a power of m, by a division where that is more exact."""
    return value * float(m**power) if power >= 0 else value / float(m**-power)
