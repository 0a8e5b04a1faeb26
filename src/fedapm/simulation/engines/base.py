"""Work: what the selected clients of a round did, however it was computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedapm.core.algorithm import Aggregate, ClientUpdate, State
from fedapm.core.metrics import Score
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec, mean
from fedapm.simulation.stores.base import ClientState, Store

Undo = Callable[[], None]


@dataclass(frozen=True)
class ClientResult:
    """One client's finished round."""

    client: int
    reply: ClientUpdate
    buffers: Vec
    log: list[SolveStats]

    def is_finite(self) -> bool:
        """Whether the client's work came out as numbers."""
        return self.reply.is_finite() and self.buffers.is_finite()


class RoundResult(Protocol):
    """The local work of a round, as the server and the record need it. Clients that diverged are left out."""

    @property
    def good(self) -> Sequence[int]:
        """The clients whose work came out as numbers."""

    @property
    def total(self) -> Aggregate:
        """Their uploads, added up."""

    @property
    def bytes_up(self) -> int:
        """What all selected clients sent."""

    @property
    def local(self) -> dict[str, float | int] | None:
        """What the local solvers did, summed up for the record."""

    def drift(self, server: State, names: Sequence[str]) -> float | None:
        """Mean over clients of Σ over shared tensors ‖u_i − ū‖; without a server model ū is the clients' mean."""

    def commit(self, store: Store) -> Undo:
        """Put the clients' new memories in place; the result takes that back."""


class Engine(Protocol):
    """Runs clients. All engines give the same results."""

    @property
    def name(self) -> str:
        """What it is called in settings and records."""

    @property
    def remarks(self) -> Sequence[str]:
        """What a user should know of how the run is computed."""

    def run_round(self, clients: Sequence[int], broadcast: State, store: Store, round: int) -> RoundResult:
        """The local work of the selected clients."""

    def evaluate(self, clients: Sequence[int], broadcast: State, store: Store, view: str) -> Iterable[dict[str, Score]]:
        """Scores of the clients' models, each on its own data, in the order asked for."""

    def close(self) -> None:
        """Give back what the engine holds: processes, memory."""


class ClientResults:
    """Work done client by client."""

    def __init__(self, done: Iterable[ClientResult]) -> None:
        every = list(done)
        self._good = [d for d in every if d.is_finite()]
        self.good = [d.client for d in self._good]
        self.total = Aggregate.of(d.reply.upload for d in self._good)
        self.bytes_up = sum(d.reply.upload.nbytes for d in every)
        self.local = local_work([d.log for d in self._good])

    def drift(self, server: State, names: Sequence[str]) -> float | None:
        """Mean over clients of Σ over shared tensors ‖u_i − ū‖; without a server model ū is the clients' mean."""
        # a method with a split of its own may keep some of the experiment's shared parameters to itself
        known = [n for n in names if self._good and n in self._good[0].reply.u]
        if not known:
            return None
        copies = [d.reply.u.only(known) for d in self._good]
        u: Vec | None = server.vectors.get("u")
        center = u.only(known) if u is not None else mean(copies)
        gaps = [copy - center for copy in copies]
        drift = sum(t.double().norm().item() for gap in gaps for t in gap.values()) / len(gaps)
        return drift if math.isfinite(drift) else None

    def commit(self, store: Store) -> Undo:
        """Put the clients' new memories in place; the result takes that back."""
        previous: Mapping[int, ClientState] = {client: store.get(client) for client in self.good}
        store.commit({d.client: ClientState(d.reply.state, d.buffers) for d in self._good})
        return lambda: store.commit(previous)


def local_work(logs: Sequence[Sequence[SolveStats]]) -> dict[str, float | int] | None:
    """What the local solvers of a round did, summed up for its record."""
    solved = [log for log in logs if log]
    if not solved:
        return None
    losses = [loss for log in solved if (loss := log[-1].loss) is not None and math.isfinite(loss)]
    work: dict[str, float | int] = {
        "epochs": sum(step.epochs for log in solved for step in log) / len(solved),
    }
    if losses:
        work["train_loss"] = math.fsum(losses) / len(losses)
    ruled = [(last.xi, last.residual) for log in solved if (last := log[-1]).xi is not None]
    if ruled:
        work["xi"] = math.fsum(xi or 0.0 for xi, _ in ruled) / len(ruled)
        known = [r for _, r in ruled if r is not None and math.isfinite(r)]
        work |= {"residual": max(known)} if known else {}
        work["missed"] = sum(r is None or not r <= (xi or 0.0) for xi, r in ruled)
    return work
