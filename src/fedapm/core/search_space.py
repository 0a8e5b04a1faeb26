"""Search spaces: which settings are tuned, and the values each may take.

These are plain descriptions, so that a method can say how it is tuned without a tuning library; ``fedapm.tuning``
searches them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Value = bool | int | float | str
Units = Literal["client", "paper"]
"""Whether hyperparameters are meant for m·α_i·f_i or for α_i·f_i."""


@dataclass(frozen=True)
class Choices:
    """One of a list of values."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


@dataclass(frozen=True)
class FloatRange:
    """A real number in a closed interval, uniform or with a uniform logarithm."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{'log' if self.log else 'lin'}:{self.low}:{self.high}"


@dataclass(frozen=True)
class IntRange:
    """A whole number between two, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"int:{self.low}:{self.high}"


Values = Choices | FloatRange | IntRange


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched."""

    setting: str
    """Its name, as ``table.key``."""
    values: Values
    fallback: str | None = None
    """The setting that holds where this one is not set, as the solver's step size where there is no lr_v."""
    unset: Value | None = None
    """The value that a setting has where it is not set and has no fallback."""
    ratio: bool = False
    """Whether the values are multiples of that other setting."""
    condition: tuple[str, Value] | None = None
    """Another setting, and the value it must have for this one to matter."""
    lists: bool = False
    """Whether the values stand for lists, each written as JSON."""

    @property
    def name(self) -> str:
        """What is searched, for records: the setting, or its ratio to another."""
        return f"{self.setting}/{self.fallback}" if self.ratio else self.setting

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the tables and of the key."""
        return tuple(self.setting.split("."))


SearchSpace = tuple[Dimension, ...]


def choices(setting: str, *values: Value) -> Dimension:
    """A setting with a list of values."""
    return Dimension(setting, Choices(values))


def log_range(setting: str, low: float, high: float) -> Dimension:
    """A setting between two numbers, uniform in its logarithm."""
    return Dimension(setting, FloatRange(low, high, log=True))


def int_range(setting: str, low: int, high: int) -> Dimension:
    """A whole-numbered setting between two numbers."""
    return Dimension(setting, IntRange(low, high))


PERSONAL_SPACE: SearchSpace = (
    Dimension(
        "solver.weight_decay_v",
        Choices((0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)),
        fallback="solver.weight_decay",
    ),
    Dimension("solver.prior_v", Choices((0.0, 0.001, 0.003, 0.01, 0.03, 0.1)), unset=0.0),
    Dimension("solver.dropout_v", FloatRange(0.0, 0.5), unset=0.0),
    Dimension("solver.validation_v", Choices((0.0, 0.2)), unset=0.0),
)
"""What keeps a personal part from overfitting: the same distribution for every method that has one."""
EPOCHS_V = Dimension("algorithm.epochs_v", IntRange(1, 5), fallback="solver.epochs")
"""Epochs of a personal phase."""
LR_V = Dimension("algorithm.lr_v", FloatRange(0.1, 3.0, log=True), fallback="solver.lr", ratio=True)
"""Step size of a personal phase, as a multiple of the solver's."""
