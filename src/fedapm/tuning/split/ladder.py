"""The ladder: how many candidates are trained for how many rounds, halving the one and doubling the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fedapm.errors import FedapmError

FINALISTS = 4
"""At most so many candidates reach the last rung."""


@dataclass(frozen=True)
class Rung:
    """A step of the search: so many candidates, trained up to a round, with these seeds."""

    candidates: int
    rounds: int
    seeds: tuple[int, ...]


def ladder(
    candidates: int, budget: int, rounds: int, seeds: Sequence[int], *, asked: bool = False, continued: bool = True
) -> tuple[Rung, ...]:
    """The rungs of a search. All seeds are used on the last one, and the first alone before.

    Where the budget is enough to train every candidate to the end with every seed, there is one rung and nobody is
    dropped: some splits learn slowly, such as training alone, for which a client has only its own rounds.

    Args:
        candidates: How many candidates there are.
        budget: Rounds of all runs together.
        rounds: What no run exceeds.
        seeds: The seeds.
        asked: Whether the budget must be kept; if not, every candidate gets at least one round.
        continued: Whether a run on a rung goes on from the one below, or starts again.

    Raises:
        FedapmError: Where a budget that must be kept is too small.
    """
    everyone = (Rung(candidates, rounds, tuple(seeds)),)
    if cost(everyone, continued) <= budget:
        return everyone
    sizes = [candidates]
    while sizes[-1] > FINALISTS:
        sizes.append((sizes[-1] + 1) // 2)
    least = _rungs(sizes, 1, seeds)
    if asked and cost(least, continued) > budget:
        raise FedapmError(
            f"a budget of {budget} rounds is too small for {candidates} candidates and {len(seeds)} seeds; it takes at "
            f"least {cost(least, continued)}."
        )
    taller = (_rungs(sizes, last, seeds) for last in range(2, rounds + 1))
    return [least, *itertools.takewhile(lambda rungs: cost(rungs, continued) <= budget, taller)][-1]


def cost(rungs: Sequence[Rung], continued: bool = True) -> int:
    """The rounds of all runs together."""
    total, done = 0, 0
    for rung in rungs:
        # only the first seed was run before
        total += rung.candidates * (len(rung.seeds) * rung.rounds - (done if continued else 0))
        done = rung.rounds
    return total


def _rungs(sizes: Sequence[int], last: int, seeds: Sequence[int]) -> tuple[Rung, ...]:
    """Rounds double from rung to rung up to the last; a rung that would bring nothing new is left out."""
    rungs: list[Rung] = []
    for position, size in enumerate(sizes):
        above = len(sizes) - 1 - position
        rounds = max(1, round(last / 2**above))
        if above == 0:
            rungs.append(Rung(size, rounds, tuple(seeds)))
        elif not rungs or rounds > rungs[-1].rounds:
            rungs.append(Rung(size, rounds, tuple(seeds[:1])))
    return tuple(rungs)
