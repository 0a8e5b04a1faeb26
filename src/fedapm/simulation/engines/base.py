"""Engine: runs the clients of a round and owns what they keep between rounds. All engines give the same results."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

from fedapm.core.algorithm import Aggregate, Algorithm, ClientUpdate, State
from fedapm.core.metrics import Score
from fedapm.core.record import RoundRecord
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec, mean
from fedapm.simulation import checkpoint, measures
from fedapm.simulation.problem import Problem
from fedapm.simulation.state import RunState
from fedapm.simulation.stores import StoreKind, open_store
from fedapm.simulation.stores.base import ClientState, InitClient, Store, Undo
from fedapm.simulation.stores.memory import MemoryStore
from fedapm.uploads import screened

AT_ONCE = 1000
"""Clients whose new states are in memory together in the closing phase, however many there are."""


class RoundResult(Protocol):
    """The local work of a round, as the server and the record need it. Clients that diverged are left out."""

    @property
    def good(self) -> Sequence[int]:
        """The clients whose work came out as finite numbers."""

    @property
    def total(self) -> Aggregate:
        """Their uploads, added up."""

    @property
    def bytes_up(self) -> int:
        """What all selected clients sent."""

    @property
    def bytes_told(self) -> int:
        """What it takes to tell clients how much of their uploads counted."""

    @property
    def local(self) -> dict[str, float | int] | None:
        """What the local solvers did, summed up for the record."""

    @property
    def abandoned(self) -> bool:
        """Whether nobody's work can be used although some may be good: the round ends as it began."""

    def screen(self, method: Algorithm, server: State) -> None:
        """Count what a method counts of each upload, before the sum is used and anything is committed.

        Args:
            method: A method that looks at single uploads.
            server: The server's state before the round.
        """

    def commit(self) -> Undo:
        """Put the clients' new states in place; the result takes that back."""


@dataclass(frozen=True)
class Resumed:
    """A run as a checkpoint has it."""

    state: RunState
    record: RoundRecord | None = None
    """The record of the checkpoint's round, where it still lacks its evaluation."""


class Engine(ABC):
    """Runs clients, wherever they are. The loop knows nothing else of them."""

    name: ClassVar[str]
    """What it is called in settings and records."""

    @abstractmethod
    def run_round(self, round: int, selected: Sequence[int], broadcast: State) -> RoundResult:
        """The local work of the selected clients.

        Args:
            round: The round, counted from 1.
            selected: The positions of its clients, in increasing order.
            broadcast: What each of them receives.

        Returns:
            What they sent and did; nothing of it counts before it is committed.
        """

    @abstractmethod
    def evaluate(self, broadcast: State, view: str) -> Sequence[dict[str, Score]]:
        """The scores of the evaluated clients (``Problem.evaluated``), each on its own data, in their order.

        Args:
            broadcast: What a client would receive now.
            view: Which of the method's models is evaluated.
        """

    @abstractmethod
    def personalize(self, round: int, broadcast: State, epochs: int) -> None:
        """Let the evaluated clients continue their personal part at the fixed shared model; nothing is sent.

        From now on evaluations and models are those after it. What rounds and checkpoints start from does not change.

        Args:
            round: The last round.
            broadcast: What a client would receive now.
            epochs: Passes over each client's data.
        """

    @abstractmethod
    def drift(self, server: State) -> float | None:
        """Mean over the last round's clients of Σ over shared tensors ‖u_i − ū‖, asked for after its evaluation."""

    @abstractmethod
    def able(self, round: int, clients: Sequence[int], broadcast: State) -> list[int]:
        """Those of some clients that would take part in a round; see :meth:`Algorithm.takes_part`.

        Args:
            round: The round.
            clients: Their positions.
            broadcast: What each of them would receive.
        """

    def prefetch(self, round: int, selected: Sequence[int], last: bool) -> None:  # noqa: B027 - most have nothing to do
        """Hear who takes part in the next round, so that work can begin early.

        Args:
            round: The next round.
            selected: Who takes part in it.
            last: Whether there is none, because the run ends here.
        """

    def read_ahead(self, clients: Sequence[int]) -> None:  # noqa: B027 - most engines have nothing to do
        """Hear whose data is needed in the round after this one, before this one begins."""

    def heard(self, round: int, before: Sequence[int]) -> Collection[int]:
        """The clients that had the last broadcast when a round began, so that they need only its change.

        Args:
            round: The round that is under way.
            before: The clients of the round before it.
        """
        del round
        return before

    def stationarity(self, round: int, broadcast: State) -> dict[str, float] | None:
        """How far all clients together are from the method's stationary point, where that can be known."""
        del round, broadcast
        return None

    def theory(self, round: int, before: State, after: State) -> dict[str, float | None]:
        """What the method's analysis speaks of, over all clients, where that can be known.

        Args:
            round: The round that has ended.
            before: What the server sent at its start.
            after: What it would send now.
        """
        del round, before, after
        return {}

    @abstractmethod
    def save(self, folder: Path, state: RunState, record: RoundRecord) -> None:
        """Write a checkpoint of the run and of all clients' states."""

    @abstractmethod
    def load(self, folder: Path, start: RunState) -> Resumed | None:
        """Go on from the newest whole checkpoint in a folder; None where there is none.

        Args:
            folder: Where checkpoints lie.
            start: The run before its first round, to check that the checkpoint belongs to the same model.
        """

    @property
    def can_save(self) -> bool:
        """Whether all clients' states are whole; if not, older checkpoints are worth more."""
        return True

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Give back what the engine holds: processes, memory."""


class LocalEngine(Engine):
    """An engine whose clients' states are in a store of this process."""

    def __init__(self, problem: Problem, algorithm: Algorithm, store: Store | None = None) -> None:
        self.problem, self.algorithm = problem, algorithm
        self.init: InitClient = client_init(problem, algorithm)
        self.store: Store = store if store is not None else self._memory_store(self.init)
        self.personalized: Store | None = None
        """The clients' states after the closing phase, once there was one; no round starts from them."""
        self._kind: StoreKind = "auto"
        everybody = len(problem.evaluated) == len(problem)
        self._evaluated: Collection[int] = problem.evaluated if everybody else frozenset(problem.evaluated)
        self._last: DriftingResult | None = None

    def open_store(self, kind: StoreKind, folder: Path | None, most: int | None = None) -> None:
        """Keep clients' states in a new store of this kind.

        Args:
            kind: See :func:`fedapm.simulation.stores.open_store`.
            folder: The folder for states on disk; a temporary one if not given.
            most: How many clients can take part at all; all of them if None.
        """
        self._kind, self.store = kind, self._new_store(kind, folder, most)

    def client_state(self, client: int) -> ClientState:
        """What a client keeps, by its position; after the closing phase with the personal part that it gave."""
        return (self.models if client in self._evaluated else self.store).get(client)

    @property
    def models(self) -> Store:
        """The states of the evaluated clients, of which evaluations are made."""
        return self.personalized if self.personalized is not None else self.store

    def _new_store(self, kind: StoreKind, folder: Path | None, most: int | None) -> Store:
        size, device = len(self.problem), self.problem.device
        return open_store(kind, folder, self.init, size, device, self._memory_store, most)

    def able(self, round: int, clients: Sequence[int], broadcast: State) -> list[int]:
        """Those of some clients that would take part in a round."""
        if self.algorithm.abstains is None:
            return list(clients)
        method, problem = self.algorithm, self.problem
        return [k for k in clients if method.takes_part(broadcast, self.store.get(k).state, problem.task(k, round))]

    def run_round(self, round: int, selected: Sequence[int], broadcast: State) -> RoundResult:
        """The local work of the selected clients."""
        self._last = self._train(round, selected, broadcast)
        return self._last

    @abstractmethod
    def _train(self, round: int, selected: Sequence[int], broadcast: State) -> DriftingResult:
        """The local work of the selected clients."""

    def personalize(self, round: int, broadcast: State, epochs: int) -> None:
        """Let the evaluated clients continue their personal part; who does not stay finite keeps what it had."""
        store, clients = self._new_store(self._kind, None, len(self.problem.evaluated)), self.problem.evaluated
        for start in range(0, len(clients), AT_ONCE):
            self._personalize(round, clients[start : start + AT_ONCE], broadcast, epochs, store)
        self.personalized = store

    @abstractmethod
    def _personalize(self, round: int, clients: Sequence[int], broadcast: State, epochs: int, into: Store) -> None:
        """The personal phase of some clients; their new states go into a store."""

    def _memory_store(self, init: InitClient) -> Store:
        return MemoryStore(init)

    def drift(self, server: State) -> float | None:
        """Mean over the last round's clients of Σ over shared tensors ‖u_i − ū‖; see :class:`DriftingResult`."""
        return self._last.drift(server, self.problem.drift_names) if self._last is not None else None

    def stationarity(self, round: int, broadcast: State) -> dict[str, float] | None:
        """The norm of each condition of a stationary point over all clients, and of all together."""
        return measures.stationarity(self.problem, self.algorithm, self.store.get, round, broadcast)

    def theory(self, round: int, before: State, after: State) -> dict[str, float | None]:
        """What the method's analysis speaks of; see :mod:`fedapm.simulation.measures`."""
        return measures.theory(self.problem, self.algorithm, self.store.get, round, before, after)

    def save(self, folder: Path, state: RunState, record: RoundRecord) -> None:
        """Write a checkpoint of the run and of all clients' states."""
        del record
        checkpoint.save(folder, state, self.store)

    def load(self, folder: Path, start: RunState) -> Resumed | None:
        """Go on from the newest whole checkpoint in a folder."""
        state = checkpoint.load_latest(folder, start, self.store, self.problem.device)
        return Resumed(state) if state is not None else None

    @property
    def can_save(self) -> bool:
        """Whether no client's state was lost."""
        return not self.store.damaged


def client_init(problem: Problem, algorithm: Algorithm) -> InitClient:
    """How every client of a problem starts under a method."""

    def init(client: int) -> ClientState:
        start = problem.start(client)
        return ClientState(algorithm.client_init(problem.u0, start.v0), start.buffers)

    return init


class DriftingResult(RoundResult, Protocol):
    """A round's result of which the clients' copies are still at hand."""

    def drift(self, server: State, names: Sequence[str]) -> float | None:
        """Mean over clients of Σ over the named tensors ‖u_i − ū‖; without a server model ū is the clients' mean."""


@dataclass(frozen=True)
class ClientResult:
    """One client's finished round."""

    client: int
    update: ClientUpdate
    buffers: Vec
    log: list[SolveStats]

    def is_finite(self) -> bool:
        """Whether the client's work came out as finite numbers."""
        return self.update.is_finite() and self.buffers.is_finite()


class ClientResults:
    """A round's work done client by client."""

    def __init__(self, store: Store, results: Sequence[ClientResult], algorithm: Algorithm) -> None:
        self._store, self.abandoned = store, False
        self._good = [result for result in results if result.is_finite()]
        self.good = [result.client for result in self._good]
        self.total = algorithm.aggregate(result.update.upload for result in self._good)
        self.bytes_up = sum(result.update.upload.nbytes for result in results)
        self.bytes_told = 0
        self.local = local_work([result.log for result in self._good])

    def screen(self, method: Algorithm, server: State) -> None:
        """Count what the method counts of each upload; clients keep what was counted."""
        screening = screened(method, server, [result.update.upload for result in self._good])
        states = [
            replace(result, update=replace(result.update, state=method.corrected(result.update.state, correction)))
            for result, correction in zip((self._good[k] for k in screening.kept), screening.corrections, strict=True)
        ]
        self._good, self.good = states, [result.client for result in states]
        self.total, self.bytes_told = screening.total, screening.nbytes

    def drift(self, server: State, names: Sequence[str]) -> float | None:
        """Mean over clients of Σ over the named tensors ‖u_i − ū‖; without a server model ū is the clients' mean."""
        # a method with a split of its own may keep some of the experiment's shared parameters to itself
        known = [n for n in names if self._good and n in self._good[0].update.u]
        if not known:
            return None
        copies = [result.update.u.only(known) for result in self._good]
        u: Vec | None = server.vectors.get("u")
        center = u.only(known) if u is not None else mean(copies)
        gaps = [copy - center for copy in copies]
        drift = sum(t.double().norm().item() for gap in gaps for t in gap.values()) / len(gaps)
        return drift if math.isfinite(drift) else None

    def commit(self) -> Undo:
        """Put the clients' new states in place; the result takes that back."""
        return self._store.replace({r.client: ClientState(r.update.state, r.buffers) for r in self._good})


def local_work(logs: Sequence[Sequence[SolveStats]]) -> dict[str, float | int] | None:
    """What the local solvers of a round did, summed up for its record.

    Args:
        logs: For each client what its solver did, call by call.

    Returns:
        Mean epochs and loss, and under the ξ-rule mean ξ, the largest residual and how many missed their ξ; None where
        nothing was solved.
    """
    solved = [log for log in logs if log]
    if not solved:
        return None
    last = [log[-1] for log in solved]
    ruled = [(step.xi, step.residual) for step in last if step.xi is not None]
    return summed_up([sum(step.epochs for step in log) for log in solved], [step.loss for step in last], ruled)


def summed_up(
    epochs: Sequence[float], losses: Sequence[float | None], ruled: Sequence[tuple[float, float | None]]
) -> dict[str, float | int]:
    """What the local solvers of a round did, for its record.

    Args:
        epochs: How many each client did, one or more clients.
        losses: The mean loss of each one's last epoch, where there was one.
        ruled: ξ and what was reached, of clients under the ξ-rule.
    """
    work: dict[str, float | int] = {"epochs": sum(epochs) / len(epochs)}
    known = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if known:
        work["train_loss"] = math.fsum(known) / len(known)
    if ruled:
        work["xi"] = math.fsum(xi for xi, _ in ruled) / len(ruled)
        residuals = [r for _, r in ruled if r is not None and math.isfinite(r)]
        work |= {"residual": max(residuals)} if residuals else {}
        work["missed"] = sum(r is None or not r <= xi for xi, r in ruled)
    return work
