"""Which clients take part in a round."""

from __future__ import annotations

from dataclasses import dataclass

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
        return sorted(int(k) for k in stream.choice(m, size=self.size(m), replace=False))
