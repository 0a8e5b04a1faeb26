"""What the clients of a round come to that were computed side by side."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from fedapm.core.algorithm import Aggregate, Algorithm, ClientUpdate, State, Upload
from fedapm.core.batched import BatchedVec, PerClient, batched, wide
from fedapm.core.vec import Vec, total
from fedapm.simulation.batched.task import BatchedTask
from fedapm.simulation.engines.base import summed_up
from fedapm.simulation.stores.base import Store, Undo
from fedapm.uploads import screened


@dataclass(frozen=True)
class Chunk:
    """The finished rounds of some clients side by side."""

    clients: list[int]
    sums: dict[str, BatchedVec]
    weights: Tensor
    state: State
    u: BatchedVec
    finite: Tensor
    work: list[tuple[float, float | None, tuple[float, float] | None]]
    """Each client's epochs, its last loss, and under the ξ-rule ξ and what was reached; empty if nothing was solved."""
    size: int
    """The bytes that each of them sends."""
    unit: float
    """The largest unit of what they send."""

    @classmethod
    def of(cls, clients: list[int], update: ClientUpdate, task: BatchedTask) -> Chunk:
        """From what a method made of stacks."""
        count = len(clients)
        sums = {name: wide(vector, count) for name, vector in update.upload.sums.items()}
        state = wide_state(update.state, count)
        u = wide(update.u, count)
        finite = finite_clients([*sums.values(), *state.vectors.values(), u], task)
        weight: Any = update.upload.weight
        weights = (
            weight.values if isinstance(weight, PerClient) else torch.full((count,), float(weight), dtype=torch.float64)
        )
        sent = sums.values() if update.upload.wire is None else [wide(update.upload.wire, count)]
        size = sum(v.nbytes // max(count, 1) for v in sent) + (8 if sums else 0)
        unit: Any = update.upload.unit
        unit = float(unit.values.abs().max()) if isinstance(unit, PerClient) else abs(float(unit))
        work = list(zip(task.epochs, task.losses, task.reached, strict=True)) if task.log else []
        return cls(clients, sums, weights, state, u, finite, work, size, unit)


class BatchedResult:
    """Work done by clients side by side."""

    def __init__(self, store: Store, clients: Sequence[int], chunks: Sequence[Chunk]) -> None:
        self._store, self._chunks, self.abandoned = store, chunks, False
        names = chunks[0].sums
        rows = [None if bool(c.finite.all()) else c.finite for c in chunks]
        lost = {k for c, r in zip(chunks, rows, strict=True) if r is not None for k in _lost(c.clients, r)}
        self.good = [k for k in clients if k not in lost]
        sums = {n: total(_summed(c.sums[n], r) for c, r in zip(chunks, rows, strict=True)) for n in names}
        counted = (c.weights if r is None else c.weights[r] for c, r in zip(chunks, rows, strict=True))
        weight = math.fsum(w for weights in counted for w in weights.tolist())
        self.total = Aggregate(sums, weight, len(self.good), unit=max(chunk.unit for chunk in chunks))
        self.bytes_up = chunks[0].size * len(clients)
        self.bytes_told = 0
        self.local = self._local()

    def screen(self, method: Algorithm, server: State) -> None:
        """Count what the method counts of each upload; clients keep what was counted."""
        uploads: dict[int, Upload] = {}
        for chunk in self._chunks:
            columns = {name: vector.unbind() for name, vector in chunk.sums.items()}
            for k, client in enumerate(chunk.clients):
                own = {name: rows[k] for name, rows in columns.items()}
                uploads[client] = Upload(own, float(chunk.weights[k]), chunk.unit)
        screening = screened(method, server, [uploads[client] for client in self.good])
        self.good = [self.good[k] for k in screening.kept]
        corrections = dict(zip(self.good, screening.corrections, strict=True))
        self._chunks = [_corrected(chunk, corrections, method) for chunk in self._chunks]
        self.total, self.bytes_told = screening.total, screening.nbytes

    def _local(self) -> dict[str, float | int] | None:
        done: list[tuple[float, float | None, tuple[float, float] | None]] = []
        for c in self._chunks:
            whole = not c.work or bool(c.finite.all())
            done += c.work if whole else [own for own, good in zip(c.work, c.finite.tolist(), strict=True) if good]
        if not done:
            return None
        epochs, losses, reached = zip(*done, strict=True)
        return summed_up(epochs, losses, [pair for pair in reached if pair is not None])

    def drift(self, server: State, names: Sequence[str]) -> float | None:
        """Mean over clients of Σ over shared tensors ‖u_i − ū‖; without a server model ū is the clients' mean."""
        known = [n for n in names if n in self._chunks[0].u]
        if not known or not self.good:
            return None
        center: Vec | None = server.vectors.get("u")
        norms = []
        for name in known:
            rows = [_finite_rows(c, name) for c in self._chunks]
            copies = torch.cat(rows) if len(rows) > 1 else rows[0]
            middle = center[name] if center is not None else copies.mean(0)
            norms.append(torch.linalg.vector_norm((copies - middle).flatten(1), dim=1))
        drift = sum(torch.stack(norms).double().sum(1).tolist())
        drift /= len(self.good)
        return drift if math.isfinite(drift) else None

    def commit(self) -> Undo:
        """Put the clients' new states in place; the result takes that back."""
        undo: list[Undo] = []
        for chunk in self._chunks:
            index = chunk.finite.nonzero().flatten()
            clients = [chunk.clients[k] for k in index.tolist()]
            if clients:
                whole = len(clients) == len(chunk.clients)
                undo.append(self._store.scatter(clients, chunk.state if whole else state_rows(chunk.state, index)))

        def back() -> None:
            for step in reversed(undo):
                step()

        return back


def wide_state(state: State, count: int) -> State:
    """A state in which every vector has a row for each of so many clients."""
    return State(**{f: wide(v, count) if isinstance(v, Vec) else v for f, v in state.items()})


def finite_clients(vectors: Collection[Vec], task: BatchedTask) -> Tensor:
    """Whether each client's vectors are all finite."""
    finite = torch.ones(len(task.clients), dtype=torch.bool)
    tensors = [tensor for vector in vectors for tensor in vector.values()]
    # a finite sum has finite terms and is much faster to check; a sum of large finite terms may still overflow
    if not tensors or math.isfinite(torch.stack([t.sum(dtype=torch.float32) for t in tensors]).sum().item()):
        return finite
    for vector in vectors:
        if len(vector):
            finite &= cast(BatchedVec, vector).finite().cpu()
    return finite


def _lost(clients: Sequence[int], finite: Tensor) -> list[int]:
    return [client for client, good in zip(clients, finite.tolist(), strict=True) if not good]


def _summed(vector: BatchedVec, rows: Tensor | None) -> Vec:
    """The sum over clients, or over some of them."""
    return Vec({n: (t if rows is None else t[rows.to(t.device)]).sum(0) for n, t in vector.items()})


def _corrected(chunk: Chunk, corrections: Mapping[int, Mapping[str, Vec]], method: Algorithm) -> Chunk:
    """A chunk whose clients keep what was counted; the others have no part in the round."""
    good = torch.tensor([client in corrections for client in chunk.clients])
    together = {
        name: batched([corrections.get(k, {}).get(name, vector.unbind()[0].zeros()) for k in chunk.clients])
        for name, vector in chunk.sums.items()
        if name in method.told
    }
    return replace(chunk, finite=chunk.finite & good, state=method.corrected(chunk.state, together))


def _finite_rows(chunk: Chunk, name: str) -> Tensor:
    copies = chunk.u[name]
    return copies if bool(chunk.finite.all()) else copies[chunk.finite.to(copies.device)]


def state_rows(state: State, index: Tensor) -> State:
    """The states of some of several clients."""
    fields: dict[str, Any] = {}
    for field, value in state.items():
        if isinstance(value, BatchedVec):
            fields[field] = value.rows(index)
        else:
            fields[field] = PerClient(cast(Any, value).values[index]) if isinstance(value, PerClient) else value
    return State(**fields)
