"""Vectorised: the clients of a round trained side by side in one batched program.

A method's client code is run once for many clients, with stacks in place of vectors. What cannot be done so is done one
client at a time, and the reason is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedapm.core.algorithm import Aggregate, Algorithm, ClientUpdate, State
from fedapm.core.batched import BatchedVec, NotBatchable, PerClient, batched
from fedapm.core.metrics import Score
from fedapm.core.solver import SolveStats
from fedapm.core.task import Task
from fedapm.core.vec import Vec, total
from fedapm.simulation.batched.evaluate import scorable, score
from fedapm.simulation.batched.network import program
from fedapm.simulation.batched.task import BatchedTask
from fedapm.simulation.engines.base import RoundResult, Undo
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import ClientState, Store
from fedapm.simulation.stores.table import TableStore

MEMORY = 1 << 29
"""Bytes that the data, parameters and activations of the clients computed together may take."""
TOLERANCE = 1e-3
"""How far, relative to its size, a client computed together with others may be from the same client by itself."""


class VectorizedEngine:
    """Runs the clients of a round side by side, in the caller's process."""

    name = "vectorised"

    def __init__(self, problem: Problem, algorithm: Algorithm, memory: int = MEMORY) -> None:
        self.problem, self.algorithm, self.memory = problem, algorithm, memory
        self._one_by_one = SequentialEngine(problem, algorithm)
        self._reasons: list[str] = []
        self._checked = False
        self._never = unable(problem)
        if self._never is not None:
            self._say(self._never)
        self._scored_together: bool | None = None if self._never is None else False
        self._program = program(problem.network(0).module)

    @property
    def remarks(self) -> list[str]:
        """What the networks have to say, and why clients were run one by one."""
        return [*self.problem.remarks, *(f"clients are trained one by one, because {r}." for r in self._reasons)]

    @property
    def fallback_reasons(self) -> list[str]:
        """The reasons for which clients were run one by one."""
        return self._reasons

    def run_round(self, clients: Sequence[int], broadcast: State, store: Store, round: int) -> RoundResult:
        """The local work of the selected clients."""
        if self._never is None:
            try:
                return self._together(clients, broadcast, store, round)
            except NotBatchable as reason:
                self._say(str(reason))
            except Exception as error:  # whatever a method or a network does not take; alone it fails again, or works
                self._say(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}")
        return self._one_by_one.run_round(clients, broadcast, store, round)

    def evaluate(self, clients: Sequence[int], broadcast: State, store: Store, view: str) -> Iterable[dict[str, Score]]:
        """Scores of the clients' models, each on its own data."""
        if self._scored_together is not False and scorable(self.problem, self._program, clients):
            try:
                found = self._scores(clients, broadcast, store, view)
            except Exception:  # whatever a method or a network does not take; alone it fails again, or works
                self._scored_together = False
            else:
                self._scored_together = self._scored_together or self._agrees(
                    clients[0], broadcast, store, view, found[0]
                )
                if self._scored_together:
                    return found
        return self._one_by_one.evaluate(clients, broadcast, store, view)

    def close(self) -> None:
        """Nothing is held."""

    def _together(self, clients: Sequence[int], broadcast: State, store: Store, round: int) -> RoundResult:
        sizes = {k: len(self.problem.federation[k].train) for k in clients}
        ordered = sorted(clients, key=lambda k: -sizes[k])
        chunks = []
        for part in self._chunks(ordered, sizes):
            cohort = BatchedTask(self.problem, part, round, self._program)
            before = gathered(store, part)
            # a cohort answers every question of a method that a task answers, for all its clients
            reply = self.algorithm.client_update(broadcast, before, cast(Task, cohort))
            chunks.append(Chunk.of(part, reply, cohort))
        if not self._checked:
            self._check(ordered[-1], broadcast, store, round, chunks[-1])
        return BatchedResult(clients, chunks)

    def _scores(self, clients: Sequence[int], broadcast: State, store: Store, view: str) -> list[dict[str, Score]]:
        sizes = {k: len(self.problem.federation[k].train) for k in clients}
        found: dict[int, dict[str, Score]] = {}
        for part in self._chunks(sorted(clients, key=lambda k: -sizes[k]), sizes):
            u, v = self.algorithm.client_model(broadcast, gathered(store, part), view)
            found |= zip(part, score(self.problem, self._program, part, u, v), strict=True)
        return [found[k] for k in clients]

    def _agrees(self, client: int, broadcast: State, store: Store, view: str, found: dict[str, Score]) -> bool:
        """Whether a client evaluated together with others has the scores of the same client by itself."""
        (alone,) = self._one_by_one.evaluate([client], broadcast, store, view)
        return alone.keys() == found.keys() and all(_same_score(alone[name], found[name]) for name in alone)

    def _chunks(self, clients: Sequence[int], sizes: dict[int, int]) -> list[list[int]]:
        """Clients that fit into the memory together."""
        start = self.problem.start(0)
        parameters = (self.problem.u0.nbytes + start.v0.nbytes) * 8
        one = self.problem.federation[clients[0]].train
        sample = sum(t[:1].numel() * t.element_size() for t in one.inputs)
        chunks: list[list[int]] = [[]]
        for client in clients:
            widest = sizes[chunks[-1][0]] if chunks[-1] else sizes[client]
            if chunks[-1] and (len(chunks[-1]) + 1) * (parameters + 4 * widest * sample) > self.memory:
                chunks.append([])
            chunks[-1].append(client)
        return chunks

    def _check(self, client: int, broadcast: State, store: Store, round: int, chunk: Chunk) -> None:
        """Compare one client with the same client by itself, once: a method may do things stacks do not mean."""
        (alone,) = self._one_by_one.train([client], broadcast, store, round)
        k = chunk.clients.index(client)
        if alone.is_finite() != bool(chunk.finite[k]):
            raise NotBatchable("a client computed together with others came out differently from the same by itself")
        pairs = [(alone.reply.u, chunk.u), *_pairs(alone.reply.state.vectors, chunk.state.vectors)]
        pairs += _pairs(alone.reply.upload.sums, chunk.sums)
        for one, many in pairs:
            for name, tensor in one.items():
                other = many[name][k] if name in many else None
                if other is None or other.shape != tensor.shape or not _close(tensor, other):
                    self._never = f"{self.algorithm.label} comes out differently when clients are computed together"
                    raise NotBatchable(self._never)
        self._checked = True

    def _say(self, reason: str) -> None:
        if reason not in self._reasons:
            self._reasons.append(reason)


@dataclass(frozen=True)
class Chunk:
    """The finished rounds of some clients side by side."""

    clients: list[int]
    sums: dict[str, BatchedVec]
    weights: Tensor
    state: State
    u: BatchedVec
    finite: Tensor
    log: list[SolveStats]
    losses: Tensor | None

    @classmethod
    def of(cls, clients: list[int], reply: ClientUpdate, cohort: BatchedTask) -> Chunk:
        """From what a method made of stacks."""
        count = len(clients)
        sums = {name: _wide(vector, count) for name, vector in reply.upload.sums.items()}
        state = State(**{f: _wide(v, count) if isinstance(v, Vec) else v for f, v in reply.state.items()})
        u = _wide(reply.u, count)
        finite = torch.ones(count, dtype=torch.bool, device=cohort.network.device)
        for vector in (*sums.values(), *state.vectors.values(), u):
            if len(vector):
                finite &= cast(BatchedVec, vector).finite()
        weight: Any = reply.upload.weight
        weights = (
            weight.values if isinstance(weight, PerClient) else torch.full((count,), float(weight), dtype=torch.float64)
        )
        return cls(clients, sums, weights, state, u, finite.cpu(), cohort.log, cohort.losses)


class BatchedResult:
    """Work done by clients side by side."""

    def __init__(self, clients: Sequence[int], chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        fine = {k for c in chunks for k, good in zip(c.clients, c.finite.tolist(), strict=True) if good}
        self.good = [k for k in clients if k in fine]
        names = chunks[0].sums
        rows = [None if bool(c.finite.all()) else c.finite for c in chunks]
        sums = {n: total(_summed(c.sums[n], r) for c, r in zip(chunks, rows, strict=True)) for n in names}
        weight = math.fsum(float(w) for c in chunks for w in c.weights[c.finite].tolist())
        self.total = Aggregate(sums, weight, len(self.good))
        sent = sum(v.nbytes // max(len(c.clients), 1) for c in chunks[:1] for v in c.sums.values())
        self.bytes_up = (sent + 8 if names else 0) * len(clients)
        self.local = self._local()

    def _local(self) -> dict[str, float | int] | None:
        if not self.good or not self._chunks[0].log:
            return None
        work: dict[str, float | int] = {"epochs": sum(step.epochs for step in self._chunks[0].log)}
        losses = [
            loss
            for c in self._chunks
            if c.losses is not None
            for loss in c.losses[c.finite].tolist()
            if math.isfinite(loss)
        ]
        if losses:
            work["train_loss"] = math.fsum(losses) / len(losses)
        return work

    def drift(self, server: State, names: Sequence[str]) -> float | None:
        """Mean over clients of Σ over shared tensors ‖u_i − ū‖; without a server model ū is the clients' mean."""
        known = [n for n in names if n in self._chunks[0].u]
        if not known or not self.good:
            return None
        center: Vec | None = server.vectors.get("u")
        drift = 0.0
        for name in known:
            copies = torch.cat([_finite_rows(c, name) for c in self._chunks])
            middle = center[name] if center is not None else copies.mean(0)
            gaps = (copies - middle).flatten(1)
            drift += torch.linalg.vector_norm(gaps, dim=1, dtype=torch.float64).sum().item()
        drift /= len(self.good)
        return drift if math.isfinite(drift) else None

    def commit(self, store: Store) -> Undo:
        """Put the clients' new memories in place; the result takes that back."""
        undo: list[Undo] = []
        for chunk in self._chunks:
            index = chunk.finite.nonzero().flatten()
            clients = [chunk.clients[k] for k in index.tolist()]
            if clients:
                whole = len(clients) == len(chunk.clients)
                undo.append(_commit(store, clients, chunk.state if whole else _rows(chunk.state, index)))

        def back() -> None:
            for step in reversed(undo):
                step()

        return back


def unable(problem: Problem) -> str | None:
    """Why the clients of a problem can never be computed together, if they cannot."""
    if problem.per_client:
        return "clients have networks of their own"
    for name in problem.start(0).buffers:
        return f"the buffer {name} belongs to one client each"
    for name, part in problem.network(0).module.named_modules():
        if isinstance(part, _DropoutNd) and part.p > 0:
            return f"the draws of {name} ({type(part).__name__}) belong to one client each"
        if isinstance(part, nn.RNNBase) and part.dropout > 0:
            return f"the draws of {name} ({type(part).__name__}) belong to one client each"
    return None


def gathered(store: Store, clients: Sequence[int]) -> State:
    """The states of some clients side by side."""
    if isinstance(store, TableStore):
        return store.gather(clients)
    states = [store.get(client).state for client in clients]
    found: dict[str, Any] = {}
    for field, value in states[0].items():
        if isinstance(value, Vec):
            found[field] = batched([cast(Vec, s[field]) for s in states])
        else:
            found[field] = PerClient(torch.tensor([float(cast(float, s[field])) for s in states], dtype=torch.float64))
    return State(**found)


def _commit(store: Store, clients: list[int], state: State) -> Undo:
    if isinstance(store, TableStore):
        before, touched = store.gather(clients), store.is_touched(clients)
        store.scatter(clients, state)

        def back() -> None:
            store.scatter(clients, before)
            store.forget([k for k, old in zip(clients, touched, strict=True) if not old])

        return back
    previous = {client: store.get(client) for client in clients}
    columns: dict[str, Any] = {}
    for field, value in state.items():
        if isinstance(value, BatchedVec):
            columns[field] = [v.clone() for v in value.unbind()] or [Vec()] * len(clients)
        elif isinstance(value, PerClient):
            columns[field] = value.values.tolist()
        else:
            columns[field] = [value] * len(clients)
    states = [State(**{field: column[k] for field, column in columns.items()}) for k in range(len(clients))]
    store.commit({k: ClientState(s, previous[k].buffers) for k, s in zip(clients, states, strict=True)})
    return lambda: store.commit(previous)


def _wide(vector: Vec, count: int) -> BatchedVec:
    if isinstance(vector, BatchedVec):
        return vector
    return BatchedVec({n: t.expand(count, *t.shape) for n, t in vector.items()})


def _summed(vector: BatchedVec, rows: Tensor | None) -> Vec:
    """The sum over clients, or over some of them."""
    return Vec({n: (t if rows is None else t[rows.to(t.device)]).sum(0) for n, t in vector.items()})


def _finite_rows(chunk: Chunk, name: str) -> Tensor:
    copies = chunk.u[name]
    return copies if bool(chunk.finite.all()) else copies[chunk.finite.to(copies.device)]


def _rows(state: State, index: Tensor) -> State:
    found: dict[str, Any] = {}
    for field, value in state.items():
        if isinstance(value, BatchedVec):
            found[field] = value.rows(index)
        else:
            found[field] = PerClient(cast(Any, value).values[index]) if isinstance(value, PerClient) else value
    return State(**found)


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
