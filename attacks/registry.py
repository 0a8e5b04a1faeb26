"""The attacks there are. A module of this package that registers one is found by itself."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import attacks
from attacks.tally import Tally

Attacker = Callable[[Tally, bool], None]
"""Makes the attack: counts every try in the tally; the flag asks for a cheap sample of it."""


@dataclass(frozen=True)
class Attack:
    """One line of the table."""

    name: str
    unit: str
    make: Attacker
    minutes: float


ATTACKS: dict[str, Attack] = {}


def attack(name: str, unit: str, minutes: float = 1.0) -> Callable[[Attacker], Attacker]:
    """Register an attack.

    Args:
        name: What the table calls it.
        unit: What is tried: kills, crash points, inputs, messages.
        minutes: About how long it takes: the longest begin first.
    """

    def register(make: Attacker) -> Attacker:
        if name in ATTACKS:
            raise ValueError(f"there are two attacks {name!r}.")
        ATTACKS[name] = Attack(name, unit, make, minutes)
        return make

    return register


def all_attacks() -> list[Attack]:
    """Every attack of this package, in the order of its modules."""
    for module in pkgutil.iter_modules(attacks.__path__):
        if not module.name.startswith("_"):
            import_module(f"attacks.{module.name}")
    return list(ATTACKS.values())
