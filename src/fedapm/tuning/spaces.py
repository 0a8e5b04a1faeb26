"""The named search spaces: wide ranges, the paper's grid, and the same grid per client.

Here is what all methods have in common. What a method has of its own is in its class: ``search_space``,
``search_grid`` and ``unit_powers`` of :class:`fedapm.core.algorithm.Algorithm`.
"""

from __future__ import annotations

from dataclasses import replace

from fedapm.core.algorithm import Algorithm
from fedapm.core.search_space import (
    PERSONAL_SPACE,
    Choices,
    Dimension,
    FloatRange,
    SearchSpace,
    Units,
    choices,
    log_range,
)
from fedapm.tuning.units import scaled, unit_powers

SPACES: dict[str, Units] = {"wide": "client", "paper": "paper", "client": "client"}
"""The named spaces, and the units their values are in."""

COMMON_SPACE: SearchSpace = (
    log_range("solver.lr", 0.005, 1.0),
    choices("solver.lr_schedule", "constant", "exponential", "cosine"),
    Dimension("solver.lr_decay", FloatRange(0.94, 0.999), condition=("solver.lr_schedule", "exponential")),
    choices("solver.weight_decay", 0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01),
    Dimension("model.options.dropout", FloatRange(0.0, 0.5)),
)
"""The same distribution for every method, per client; dropout where the network has it."""

PAPER_LR = choices("solver.lr", 0.05, 0.1, 0.5, 1.0)
"""The step sizes of the paper's grid, in its own units."""


def named_space(name: str, method: type[Algorithm], m: int) -> SearchSpace:
    """The space of that name for a method with m clients.

    Args:
        name: One of :data:`SPACES`.
        method: The method's class.
        m: The number of clients, on which the values of a grid depend where they are converted to other units.
    """
    if name == "wide":
        return COMMON_SPACE + (PERSONAL_SPACE if method.scope != "whole" else ()) + method.search_space
    units = SPACES[name]
    grid = ((PAPER_LR, "paper"), *((d, method.grid_units) for d in method.search_grid))
    powers = unit_powers(method)
    sign = 1 if units == "paper" else -1
    return tuple(d if own == units else _scaled(d, sign * powers.get(d.setting, 0), m) for d, own in grid)


def _scaled(d: Dimension, power: int, m: int) -> Dimension:
    assert isinstance(d.values, Choices), "a grid has lists of values"
    if not power:
        return d
    return replace(d, values=Choices(tuple(scaled(float(value), power, m) for value in d.values.values)))
