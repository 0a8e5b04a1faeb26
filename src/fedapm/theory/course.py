"""Course: the Lyapunov function over the rounds of a run, as its records have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapm.theory.rates import Rate, observed_rate


@dataclass(frozen=True)
class Course:
    """The Lyapunov function from some round on, in rounds that follow each other and have one ρ."""

    first: int
    values: tuple[float, ...]
    rho_changed: bool
    """Whether ρ was another one before: values under different ρ do not compare."""

    @property
    def steps(self) -> int:
        """How many rounds it says something about."""
        return len(self.values) - 1

    @property
    def falls(self) -> int:
        """In how many of them the function did not go up, but for rounding."""
        slack = 1e-12 * max(map(abs, self.values))
        return sum(after <= before + slack for before, after in zip(self.values[:-1], self.values[1:], strict=True))

    def rate(self) -> Rate | str:
        """The rate it shows, or why there is none to be seen."""
        return observed_rate(self.values)


def course(records: Sequence[Mapping[str, Any]]) -> Course | None:
    """The course that a run's records have; None where it was not recorded.

    Args:
        records: The rounds, as in rounds.jsonl.
    """
    rows = [(record["round"], record.get("theory") or {}) for record in records]
    tail: list[tuple[int, float]] = []
    rho_changed = False
    for number, row in reversed(rows):
        value = row.get("lyapunov")
        if value is None:
            break
        if tail and row.get("rho") != rows[-1][1].get("rho"):
            rho_changed = True
            break
        tail.append((number, float(value)))
    if len(tail) < 2 and not rho_changed:
        return None
    return Course(tail[-1][0], tuple(value for _, value in reversed(tail)), rho_changed)
