"""Table store: clients' states as rows of large tensors, so that a cohort is read and written at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedapm.core.algorithm import State, Value
from fedapm.core.batched import BatchedVec, PerClient, batched
from fedapm.core.vec import Vec
from fedapm.simulation.stores.base import ClientState, InitClient, Store, Undo

FEWEST = 1024
"""Rows that there is room for from the start."""


class TableStore(Store):
    """Everything in memory, one row a client, for clients whose memories look alike.

    A client has a row from the first time it takes part. There is room for as many rows as there have been, doubled
    when it is full, so a client that never takes part costs nothing but its entry in the list of rows.
    """

    def __init__(self, init: InitClient, population: int, alike: bool = True) -> None:
        """Begin without a client that has taken part.

        Args:
            init: How a client starts.
            population: How many clients there are.
            alike: Whether all of them start alike.
        """
        self._init = init
        self._population = population
        self._alike = alike
        self._columns: dict[tuple[str, str], Tensor] = {}
        self._touched = torch.zeros(population, dtype=torch.bool)
        self._row = torch.full((population,), -1)
        """Where each client's row is; it stays there when a commit is taken back."""
        self._used = self._room = 0
        self._template: ClientState | None = None

    def get(self, client: int) -> ClientState:
        """A client's memory, or how it starts."""
        if not self._touched[client]:
            return self._init(client)
        state, buffers = self._layout()

        row = int(self._row[client])

        def vector(field: str, like: Vec) -> Vec:
            return Vec({n: self._columns[field, n][row].clone() for n in like})

        fields: dict[str, Value] = {
            field: vector(f"state.{field}", value) if isinstance(value, Vec) else float(self._columns[field, ""][row])
            for field, value in state.items()
        }
        return ClientState(State(**fields), vector("buffers", buffers))

    def commit(self, updates: Mapping[int, ClientState]) -> None:
        """Replace the memories of some clients."""
        if not updates:
            return
        self._make_room(torch.tensor([*updates]), next(iter(updates.values())))
        for client, client_state in updates.items():
            for key, value in _flat(client_state):
                self._columns[key][self._row[client]] = value
            self._touched[client] = True

    def touched(self) -> Iterator[tuple[int, ClientState]]:
        """The clients whose memory is no longer how it started, in order."""
        for client in self._touched.nonzero().flatten().tolist():
            yield client, self.get(client)

    def gather(self, clients: Sequence[int]) -> State:
        """The states of some clients side by side."""
        return self._gather(_index(clients))

    def scatter(self, clients: Sequence[int], state: State) -> Undo:
        """Replace the states of some clients by those side by side; the result takes that back."""
        index = _index(clients)
        # many methods keep nothing
        before, fresh = self._gather(index) if state else state, ~self._touched[index]
        self._write(index, state)

        def undo() -> None:
            self._write(index, before)
            self._touched[index[fresh]] = False

        return undo

    def _gather(self, index: Tensor) -> State:
        state, _ = self._layout()
        fresh = ~self._touched[index] if state else None
        fresh = None if fresh is None or not bool(fresh.any()) else fresh
        if fresh is not None and not self._alike:
            state = self._starts(index[fresh])
        # whoever has no row reads the first one, which its start then replaces
        places = self._row[index].clamp(min=0)
        fields: dict[str, Value] = {}
        for field, value in state.items():
            if isinstance(value, Vec):
                own = isinstance(value, BatchedVec)
                rows = {n: self._rows((f"state.{field}", n), t, places, fresh, own) for n, t in value.items()}
                fields[field] = BatchedVec(rows)
            else:
                number = torch.tensor(float(value), dtype=torch.float64)
                fields[field] = PerClient(self._rows((field, ""), number, places, fresh))  # type: ignore[assignment]
        return State(**fields)

    def _starts(self, clients: Tensor) -> State:
        """How some clients start, side by side; numbers are the same for all."""
        states = [self._init(client).state for client in clients.tolist()]

        def column(field: str, value: Value) -> Value:
            return batched([state[field] for state in states]) if isinstance(value, Vec) else value  # type: ignore[misc]

        return State(**{field: column(field, value) for field, value in states[0].items()})

    def _write(self, index: Tensor, state: State) -> None:
        self._touched[index] = True
        if not state:
            return
        self._make_room(index, self._sample())
        rows = self._row[index]
        for field, value in state.items():
            if isinstance(value, Vec):
                for name, tensor in value.items():
                    self._columns[f"state.{field}", name].index_copy_(0, rows.to(tensor.device), tensor)
            else:
                numbers = (
                    value.values if isinstance(value, PerClient) else torch.tensor(float(value), dtype=torch.float64)
                )
                self._columns[field, ""][rows] = numbers.cpu()

    def _rows(
        self, key: tuple[str, str], start: Tensor, places: Tensor, fresh: Tensor | None, own: bool = False
    ) -> Tensor:
        if key not in self._columns:
            # nobody has a row, so everybody starts here
            return start if own else start.expand(len(places), *start.shape)
        column = self._columns[key]
        rows = column.index_select(0, places.to(column.device))
        if fresh is not None:
            rows[fresh.to(column.device)] = start
        return rows

    def _sample(self) -> ClientState:
        if self._template is None:
            self._template = self._init(0)
        return self._template

    def _layout(self) -> tuple[State, Vec]:
        client_state = self._sample()
        return client_state.state, client_state.buffers

    def _make_room(self, clients: Tensor, like: ClientState) -> None:
        """Give each of these clients a row."""
        new = clients[self._row[clients] < 0]
        self._row[new] = torch.arange(self._used, self._used + len(new))
        self._used += len(new)
        if self._used <= self._room:
            return
        self._room = min(max(2 * self._used, FEWEST), self._population)
        for key, value in _flat(like):
            # a state is written before it is read, so memory that is not used yet is not touched
            room = torch.empty(self._room, *value.shape, dtype=value.dtype, device=value.device)
            kept = len(self._columns[key]) if key in self._columns else 0
            if kept:
                room[:kept] = self._columns[key]
            if key[0] == "buffers":
                room[kept:] = value
            self._columns[key] = room


def _index(clients: Sequence[int]) -> Tensor:
    # several times faster than a tensor of a list
    return torch.from_numpy(np.array(clients, dtype=np.int64))


def _flat(client_state: ClientState) -> Iterator[tuple[tuple[str, str], Tensor]]:
    for field, value in client_state.state.items():
        if isinstance(value, Vec):
            for name, tensor in value.items():
                yield (f"state.{field}", name), tensor
        else:
            yield (field, ""), torch.tensor(float(value), dtype=torch.float64)
    for name, tensor in client_state.buffers.items():
        yield ("buffers", name), tensor
