"""NormLimited: a message far longer than messages usually are counts as never sent.

The measure is the median norm of the last accepted messages and of those at hand. On Flower the server does the same
for every method (``flower.norm_limit``); this is for simulations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedapm.core.algorithm import Aggregate, State, Upload
from fedapm.core.vec import Vec
from fedapm.uploads.layer import Layer
from fedapm.uploads.robust import norm_of

MEMORY, FEWEST = 100, 3
"""How many norms are remembered, and how many it takes to tell what is usual."""
RECENT = "recent_norms"
"""The field of the server's state that holds the norms of the last accepted messages; −1 where there is none yet."""


@dataclass(frozen=True)
class NormLimited(Layer):
    """A method whose server refuses messages that are far too long."""

    factor: float
    """How many times the usual norm a message may have."""

    @property
    def screens(self) -> bool:
        """Single messages are measured."""
        return True

    def server_init(self, u0: Vec) -> State:
        """No message has been seen."""
        none = Vec({"norms": torch.full((MEMORY,), -1.0, dtype=torch.float64)})
        return self.method.server_init(u0).replace(**{RECENT: none})

    def broadcast(self, server: State) -> State:
        """The method's own."""
        return self.method.broadcast(_own(server))

    def counted(self, server: State, uploads: Sequence[Upload]) -> list[Upload | None]:
        """Of the messages that are not too long as they arrived, what the method counts."""
        norms = [norm_of(upload) for upload in uploads]
        known = [*_recent(server), *(norm for norm in norms if norm < math.inf)]
        usual = statistics.median_low(known) if len(known) >= FEWEST else 0.0
        short = [not usual or norm <= self.factor * usual for norm in norms]
        passed = iter(self.method.counted(_own(server), [u for u, fits in zip(uploads, short, strict=True) if fits]))
        return [next(passed) if fits else None for fits in short]

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The method's own; the norms of what was counted are remembered."""
        last = [*_recent(state), *total.norms][-MEMORY:]
        norms = torch.tensor(last + [-1.0] * (MEMORY - len(last)), dtype=torch.float64)
        new = self.method.server_update(_own(state), replace(total, norms=()), m)
        return new.replace(**{RECENT: Vec({"norms": norms})})


def _recent(server: State) -> list[float]:
    norms: list[float] = server.vectors[RECENT]["norms"].tolist()
    return [norm for norm in norms if norm >= 0]


def _own(server: State) -> State:
    """What the method itself keeps."""
    return State(**{name: value for name, value in server.items() if name != RECENT})
