"""Announced: a method whose broadcast is sent as a rounded change of the one before.

    w ← w + C(ū − w)        what clients are shown

The server keeps what it has shown beside the exact ū. Clients that have the last w receive C(ū − w) alone, all others
the whole w. The rounding error is a share of the last change, not of ū, and goes away as ū settles.

Gruntkowska, Tyurin, Richtárik: EF21-P and Friends: Improved Theoretical Communication Complexity for Distributed
Optimization with Bidirectional Compression. ICML 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedapm.core.algorithm import Aggregate, State, Value
from fedapm.core.vec import Vec
from fedapm.uploads.layer import Layer
from fedapm.uploads.rounding import Rounding

SHOWN, STEP = "shown_", "coded_step"
"""The fields of the server's state: what clients were shown of each vector, and the last change of it as it is sent."""


@dataclass(frozen=True)
class Announced(Layer):
    """A method whose broadcast is sent as a rounded change of the one before."""

    rounding: Rounding

    def server_init(self, u0: Vec) -> State:
        """At the start clients are shown what the server has."""
        state = self.method.server_init(u0)
        start = self.method.broadcast(state).vectors
        shown: dict[str, Value] = {SHOWN + name: vector for name, vector in start.items()}
        return state.replace(**shown, **{STEP: self.still(State(**start))})

    def broadcast(self, server: State) -> State:
        """The method's own, with what clients are shown."""
        exact = self.method.broadcast(_own(server))
        return State(**{name: server[SHOWN + name] if isinstance(v, Vec) else v for name, v in exact.items()})

    def step(self, server: State) -> Vec:
        """The last change of what clients are shown, as it is sent."""
        return server.vectors[STEP]

    def change_nbytes(self, broadcast: State) -> int:
        """The bytes of a rounded change."""
        return self.still(broadcast).nbytes + 8 * len(broadcast.numbers)

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The method's own; then what clients are shown follows."""
        new = self.method.server_update(_own(state), total, m)
        wanted = self.method.broadcast(new).vectors
        before = {name: state.vectors[SHOWN + name] for name in wanted}
        steps = {name: vector - before[name] for name, vector in wanted.items()}
        if not all(step.is_finite() for step in steps.values()):  # whoever evaluates it will see that
            steps = {name: vector.zeros() for name, vector in wanted.items()}
            before = wanted
        coded = self._encoded(steps)
        after = self.added(before, coded)
        return new.replace(**{SHOWN + name: vector for name, vector in after.items()}, **{STEP: coded})

    def added(self, before: Mapping[str, Vec], coded: Vec) -> dict[str, Vec]:
        """What clients are shown after a change.

        Args:
            before: What they were shown before it, by the names in the broadcast.
            coded: The change as it is sent.

        Raises:
            FedapmError: If it is no change of such vectors.
        """
        after = {}
        for name, vector in before.items():
            start = f"{name}/"
            parts = {part.removeprefix(start): t for part, t in coded.items() if part.startswith(start)}
            dtype = next(iter(vector.values())).dtype
            after[name] = vector + Vec(self.rounding.decode(parts, dtype)).only(vector)
        return after

    def still(self, broadcast: State) -> Vec:
        """No change of a broadcast, as it is sent: the names, shapes and types of every change."""
        return self._encoded({name: vector.zeros() for name, vector in broadcast.vectors.items()})

    def _encoded(self, steps: Mapping[str, Vec]) -> Vec:
        # to the nearest number: the error is made up for in the next round, so it need not have a mean of zero
        return Vec(
            {
                f"{name}/{part}": tensor
                for name, step in steps.items()
                for own, exact in step.items()
                for part, tensor in self.rounding.encode(own, exact, None).items()
            }
        )


def _own(server: State) -> State:
    """What the method itself keeps."""
    return State(**{n: v for n, v in server.items() if not n.startswith(SHOWN) and n != STEP})
