"""When a search stops: after some epochs, at a ξ-approximate solution, or when held-out samples no longer gain.

The rules are written for several clients, each of which stops at a time of its own; one client is the case of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Epochs:
    """Stop after a number of passes over the data."""

    count: int


@dataclass(frozen=True)
class UntilStationary:
    """Stop at a ξ-approximate solution: the squared norm of the objective's full local gradient is at most ξ."""

    xi: Any
    """ξ, one number or one for each of several clients."""
    max_epochs: int


StopRule = Epochs | UntilStationary


class Search(Protocol):
    """A search under way for one or several clients. Lists have an entry for each that is still searching."""

    def epoch(self) -> list[float]:
        """One pass over the data; the mean losses."""

    def residuals(self) -> list[float]:
        """The squared norms of the whole objective's gradients on all local data."""

    def judged(self) -> list[float]:
        """The mean losses of the samples that are held out."""

    def remember(self, better: Sequence[bool]) -> None:
        """Keep the parameters of some as what they end with."""

    def only(self, going: Sequence[bool]) -> None:
        """Go on with some; the others are done."""


@dataclass
class Course:
    """What a search did, client by client."""

    clients: int
    epochs: list[int] = field(init=False)
    losses: list[float | None] = field(init=False)
    """The mean loss of the last epoch; None where there was none."""
    residuals: list[float] = field(init=False)
    """Under the ξ-rule what was reached."""

    def __post_init__(self) -> None:
        self.epochs, self.losses, self.residuals = [0] * self.clients, [None] * self.clients, [math.nan] * self.clients

    def epoch(self, search: Search, places: Sequence[int]) -> list[float]:
        """One more pass of the clients at these places."""
        losses = search.epoch()
        if len(places) == self.clients:
            self.epochs, self.losses = [done + 1 for done in self.epochs], [*losses]
            return losses
        for place, loss in zip(places, losses, strict=True):
            self.epochs[place] += 1
            self.losses[place] = loss
        return losses


def after_epochs(search: Search, clients: int, most: int) -> Course:
    """Passes until there were enough, or until a client's loss is no longer a number."""
    course, places = Course(clients), list(range(clients))
    for _ in range(most):
        losses = course.epoch(search, places)
        if math.isfinite(sum(losses)):  # so all of them are
            continue
        places = _go_on(search, places, [math.isfinite(loss) for loss in losses])
        if not places:
            break
    return course


def until_stationary(search: Search, xis: Sequence[float], most: int) -> Course:
    """Passes until the squared norm of the gradient is at most ξ."""
    course, places = Course(len(xis)), list(range(len(xis)))
    for done in range(most + 1):
        for place, residual in zip(places, search.residuals(), strict=True):
            course.residuals[place] = residual
        going = [done < most and course.residuals[place] > xis[place] for place in places]
        places = _go_on(search, places, going)
        if not places:
            break
        course.epoch(search, places)
    return course


def while_better(search: Search, clients: int, most: int) -> Course:
    """Passes while the loss of the held-out samples falls; what was best is remembered."""
    course, places = Course(clients), list(range(clients))
    lowest = search.judged()
    search.remember([True] * clients)
    for _ in range(most):
        course.epoch(search, places)
        reached = search.judged()
        better = [now < lowest[place] for place, now in zip(places, reached, strict=True)]
        search.remember(better)
        for place, now, improved in zip(places, reached, better, strict=True):
            lowest[place] = now if improved else lowest[place]
        places = _go_on(search, places, better)
        if not places:
            break
    return course


def _go_on(search: Search, places: list[int], going: Sequence[bool]) -> list[int]:
    if all(going):
        return places
    if any(going):
        search.only(going)
    return [place for place, goes in zip(places, going, strict=True) if goes]
