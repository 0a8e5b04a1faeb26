"""Vectorized: the clients of a round trained side by side in one batched program.

A method's client code is run once for many clients, with batched vectors in place of vectors. What cannot be done so is
done one client at a time, and the reason is logged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from torch import Tensor

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.batched import NotBatchable, PerClient
from fedapm.core.messages import OnceLogger
from fedapm.core.metrics import Score
from fedapm.core.vec import Vec
from fedapm.simulation.batched.dropout import dropouts, unknown_draws
from fedapm.simulation.batched.evaluate import can_evaluate, evaluate
from fedapm.simulation.batched.network import batched_network
from fedapm.simulation.batched.table import Table, training_table
from fedapm.simulation.batched.task import BatchedTask
from fedapm.simulation.engines.base import DriftingResult
from fedapm.simulation.engines.batched_result import BatchedResult, Chunk, finite_clients, state_rows, wide_state
from fedapm.simulation.engines.sequential import SequentialEngine, evaluate_client, personalize_client, train_client
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import InitClient, Store
from fedapm.simulation.stores.memory import MemoryStore
from fedapm.simulation.stores.table import TableStore

logger = logging.getLogger(__name__)
MEMORY = 1 << 29
"""Bytes that the data, parameters and activations of the clients computed together may take."""
TOLERANCE = 1e-3
"""How far, relative to its size, a client computed together with others may be from the same client by itself."""


class VectorizedEngine(SequentialEngine):
    """Runs the clients of a round side by side, in the caller's process; what cannot be done so, one by one."""

    name = "vectorized"

    def __init__(
        self, problem: Problem, algorithm: Algorithm, store: Store | None = None, memory: int = MEMORY
    ) -> None:
        super().__init__(problem, algorithm, store)
        self.memory = memory
        self.fallback_reasons: list[str] = []
        """Why clients were run one by one, where they were."""
        self._log = OnceLogger(logger)
        self._checked = False
        self._once = False
        """Whether clients went through their samples only once in the last round."""
        self._never = unable(problem)
        if self._never is not None:
            self._fall_back(self._never)
        self._evaluates_batched: bool | None = None if self._never is None else False
        self._network = batched_network(problem.network(0).module)

    def _memory_store(self, init: InitClient) -> Store:
        problem = self.problem
        return MemoryStore(init) if problem.per_client else TableStore(init, len(problem), not problem.own_starts)

    def _train(self, round: int, selected: Sequence[int], broadcast: State) -> DriftingResult:
        if self._never is None:
            with self._noting_reasons():
                return self._train_batched(round, selected, broadcast)
        if round:  # round 0 is a trial, whose reasons are for whoever chooses the engine
            self._say_reasons()
        return super()._train(round, selected, broadcast)

    def _personalize(self, round: int, clients: Sequence[int], broadcast: State, epochs: int, into: Store) -> None:
        if self._never is None:
            with self._noting_reasons():
                return self._personalize_batched(round, clients, broadcast, epochs, into)
        self._say_reasons()
        return super()._personalize(round, clients, broadcast, epochs, into)

    def evaluate(self, broadcast: State, view: str) -> list[dict[str, Score]]:
        """The scores of the evaluated clients, each on its own data."""
        clients = self.problem.evaluated
        if self._evaluates_batched is not False:
            try:
                scores = self._evaluate_batched(clients, broadcast, view)
            except Exception:  # whatever a method or a network does not take; alone it fails again, or works
                self._evaluates_batched = False
            else:
                self._evaluates_batched = self._evaluates_batched or self._agrees(
                    clients[0], broadcast, view, scores[0]
                )
                if self._evaluates_batched:
                    return scores
        return super().evaluate(broadcast, view)

    def _train_batched(self, round: int, selected: Sequence[int], broadcast: State) -> BatchedResult:
        ordered, sizes = self._by_size(selected)
        chunks = []
        for part in self._chunks(ordered, sizes):
            task = self._task(part, round, once=self._once)
            update = self.algorithm.client_update(broadcast, self._stacked(self.store, part), task)
            chunks.append(Chunk.of(part, update, task))
            self._once = task.draws == 1
        if not self._checked:
            plain = self.algorithm.plain
            if plain is not self.algorithm:
                # rounding takes a last digit for a whole step, so the method itself is compared
                task = self._task(part, round)
                update = plain.client_update(broadcast, self._stacked(self.store, part), task)
            self._check(ordered[-1], broadcast, round, Chunk.of(part, update, task))
        return BatchedResult(self.store, selected, chunks)

    def _personalize_batched(
        self, round: int, clients: Sequence[int], broadcast: State, epochs: int, into: Store
    ) -> None:
        ordered, sizes = self._by_size(clients)
        for part in self._chunks(ordered, sizes):
            before = self._stacked(self.store, part)
            task = self._task(part, round + 1, lr_factor=self.problem.lr_factor(round))
            after = wide_state(self.algorithm.personalize(broadcast, before, task, epochs), len(part))
            finite = finite_clients(after.vectors.values(), task)
            # who did not stay finite keeps what it had
            for state, chosen in ((after, finite), (before, ~finite)):
                index = chosen.nonzero().flatten()
                if len(index):
                    into.scatter([part[k] for k in index.tolist()], state_rows(state, index))
        if self.personalized is None:
            self._check_personalized(ordered[-1], round, broadcast, epochs, into)

    def _check_personalized(self, client: int, round: int, broadcast: State, epochs: int, store: Store) -> None:
        """Compare one client with the same client by itself."""
        state = self.store.get(client)
        alone = personalize_client(self.problem, self.algorithm, client, state, broadcast, round, epochs).state
        together = store.get(client).state.vectors
        if not all(_close(t, together[field][n]) for field, v in alone.vectors.items() for n, t in v.items()):
            raise NotBatchable(f"{self.algorithm.label} comes out differently when clients are computed together")

    def _evaluate_batched(self, clients: Sequence[int], broadcast: State, view: str) -> list[dict[str, Score]]:
        ordered, sizes = self._by_size(clients)
        scores: dict[int, dict[str, Score]] = {}
        for part in self._chunks(ordered, sizes):
            if not can_evaluate(self.problem, self._network, part):
                raise NotBatchable("these scores are computed client by client")
            u, v = self.algorithm.client_model(broadcast, self._stacked(self.models, part), view)
            scores |= zip(part, evaluate(self.problem, self._network, part, u, v), strict=True)
        return [scores[k] for k in clients]

    def _agrees(self, client: int, broadcast: State, view: str, scores: dict[str, Score]) -> bool:
        """Whether a client evaluated with others has the scores of the same client by itself."""
        alone = evaluate_client(self.problem, self.algorithm, client, self.models.get(client), broadcast, view)
        return alone.keys() == scores.keys() and all(_same_score(alone[name], scores[name]) for name in alone)

    def _task(self, part: Sequence[int], round: int, **settings: Any) -> BatchedTask:
        return BatchedTask(self.problem, part, round, self._network, table=self._table, **settings)

    @cached_property
    def _table(self) -> Table | None:
        return training_table(self.problem)

    def _stacked(self, store: Store, clients: Sequence[int]) -> State:
        """The states of some clients side by side; numbers, which stores keep in main memory, where vectors are."""
        fields: dict[str, Any] = dict(store.gather(clients))
        for field, value in fields.items():
            if isinstance(value, PerClient):
                fields[field] = PerClient(value.values.to(self.problem.device))
        return State(**fields)

    def _by_size(self, clients: Sequence[int]) -> tuple[list[int], dict[int, int]]:
        """The clients, larger ones first, and their sizes."""
        sizes = dict(zip(clients, self.problem.federation.sizes_of(clients), strict=True))
        return sorted(clients, key=sizes.__getitem__, reverse=True), sizes

    def _chunks(self, clients: Sequence[int], sizes: dict[int, int]) -> list[list[int]]:
        """Clients that fit into the memory together; larger ones come first."""
        start = self.problem.start(0)
        parameters = (self.problem.u0.nbytes + start.v0.nbytes) * 8
        one = self.problem.federation[clients[0]].train
        sample = sum(t[:1].numel() * t.element_size() for t in one.inputs)
        if len(clients) * (parameters + 4 * sizes[clients[0]] * sample) <= self.memory:
            return [list(clients)]
        chunks: list[list[int]] = [[]]
        for client in clients:
            widest = sizes[chunks[-1][0]] if chunks[-1] else sizes[client]
            if chunks[-1] and (len(chunks[-1]) + 1) * (parameters + 4 * widest * sample) > self.memory:
                chunks.append([])
            chunks[-1].append(client)
        return chunks

    def _check(self, client: int, broadcast: State, round: int, chunk: Chunk) -> None:
        """Compare one client with the same client by itself, once: a method may do what batches do not mean."""
        alone = train_client(self.problem, self.algorithm.plain, client, self.store.get(client), broadcast, round)
        k = chunk.clients.index(client)
        if alone.is_finite() != bool(chunk.finite[k]):
            raise NotBatchable("a client computed together with others came out differently from the same by itself")
        pairs = [(alone.update.u, chunk.u), *_pairs(alone.update.state.vectors, chunk.state.vectors)]
        pairs += _pairs(alone.update.upload.sums, chunk.sums)
        for one, many in pairs:
            for name, tensor in one.items():
                other = many[name][k] if name in many else None
                if other is None or other.shape != tensor.shape or not _close(tensor, other):
                    self._never = f"{self.algorithm.label} comes out differently when clients are computed together"
                    raise NotBatchable(self._never)
        self._checked = True

    @contextmanager
    def _noting_reasons(self) -> Iterator[None]:
        """Try to compute clients together; what speaks against it is noted, and the block is left."""
        try:
            yield
        except NotBatchable as reason:
            self._fall_back(str(reason))
        except Exception as error:  # whatever a method or a network does not take; alone it fails again, or works
            first_line = str(error).splitlines()[0] if str(error) else "no message"
            self._fall_back(f"{type(error).__name__}: {first_line}")

    def _say_reasons(self) -> None:
        self._log.info(*(f"clients are trained one by one, because {why}." for why in self.fallback_reasons))

    def _fall_back(self, reason: str) -> None:
        if reason not in self.fallback_reasons:
            self.fallback_reasons.append(reason)


def unable(problem: Problem) -> str | None:
    """Why the clients of a problem can never be computed together, if they cannot."""
    if problem.per_client:
        return "clients have networks of their own"
    if problem.protection is not None:
        return "gradients of single samples are protected"
    for name in problem.start(0).buffers:
        return f"the buffer {name} belongs to one client each"
    network = problem.network(0)
    if (part := unknown_draws(network.module)) is not None:
        return f"the draws of {part} belong to one client each"
    drops = dropouts(network.module) or (problem.solver.dropout_v and network.personal_layers(network.split.personal))
    if drops and problem.device.type != "cpu":
        return f"dropout is drawn client by client on {problem.device.type}"
    return None


def _pairs(alone: Any, many: Any) -> list[tuple[Vec, Vec]]:
    return [(vector, many.get(field, Vec())) for field, vector in alone.items()]


def _same_score(a: Score, b: Score) -> bool:
    if a is None or b is None or not math.isfinite(a):
        return a == b or (a is not None and b is not None and not math.isfinite(b))
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _close(a: Tensor, b: Tensor) -> bool:
    scale = max(float(a.abs().max()) if a.numel() else 0.0, 1e-6)
    gap = float((a - b).abs().max()) if a.numel() else 0.0
    return gap <= TOLERANCE * scale or not math.isfinite(gap)
