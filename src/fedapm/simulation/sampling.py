"""Which clients take part in a round."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fedapm.core.random import numpy_generator
from fedapm.errors import FedapmError


@dataclass(frozen=True)
class Sampling:
    """Uniform without replacement: a fraction of all clients, or a count."""

    fraction: float = 0.3
    count: int | None = None

    def size(self, m: int) -> int:
        """How many of m clients take part in a round."""
        if self.count is not None:
            if not 1 <= self.count <= m:
                raise FedapmError(f"{self.count} clients a round cannot be selected from {m}.")
            return self.count
        if not 0 < self.fraction <= 1:
            raise FedapmError(f"the fraction of clients a round must be above 0 and at most 1, not {self.fraction}.")
        return max(1, round(self.fraction * m))

    def draw(self, m: int, seed: int, round: int) -> list[int]:
        """The clients of a round, in increasing order."""
        stream = numpy_generator(seed, "clients", round)
        drawn: list[int] = np.sort(stream.choice(m, size=self.size(m), replace=False)).tolist()
        return drawn


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Each client with the same probability, independently of all others; nobody may take part in a round.

    The draws are a secret: they come from the operating system, and a process remembers them while it needs them.
    """

    keyed: bool = False
    """Whether draws are repeated with the run's seed, which keeps no secret and is for tests."""
    _drawn: dict[tuple[int, int], list[int]] = field(default_factory=dict, compare=False, repr=False)

    def draw(self, m: int, seed: int, round: int) -> list[int]:
        """The clients of a round, in increasing order; the same when it is asked for again."""
        rate = self.size(m) / m if self.count is not None else self.fraction
        if self.keyed:
            chances = numpy_generator(seed, "secret clients", round).random(m)
            return np.flatnonzero(chances < rate).tolist()
        if (m, round) not in self._drawn:
            self._drawn[m, round] = [*_independently(m, rate)]
        return self._drawn[m, round]


def _independently(m: int, rate: float) -> Iterator[int]:
    """Each of m numbers with the same probability, from one that is drawn to the next: the gaps are geometric."""
    if rate >= 1:
        yield from range(m)
        return
    source, number = secrets.SystemRandom(), -1
    while True:
        gap = math.log1p(-source.random()) / math.log1p(-rate)
        if number + gap >= m:
            return
        number += 1 + int(gap)
        if number >= m:
            return
        yield number
