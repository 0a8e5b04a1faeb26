"""Store: what every client keeps between rounds, and how it goes into a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from fedapm.core.algorithm import State, Value
from fedapm.core.batched import BatchedVec, PerClient, batched
from fedapm.core.vec import Vec

Undo = Callable[[], None]


@dataclass(frozen=True)
class ClientState:
    """What one client keeps: the method's state, and its network's buffers."""

    state: State
    buffers: Vec

    @property
    def nbytes(self) -> int:
        """What keeping it costs, in bytes."""
        return self.state.nbytes + self.buffers.nbytes


InitClient = Callable[[int], ClientState]
"""How a client starts, by its position."""


@dataclass(frozen=True)
class Snapshot:
    """A store as a checkpoint holds it."""

    tensors: Mapping[str, Tensor]
    note: Mapping[str, Any]
    """What describes the tensors, as JSON."""
    settle: Callable[[Path], None] | None = None
    """Called with the checkpoint's path when it is written, in place of the usual removal of old ones."""


class SavedClients(Protocol):
    """The clients of a checkpoint."""

    @property
    def path(self) -> Path:
        """The checkpoint."""

    @property
    def in_rows(self) -> bool:
        """Whether their states are in rows beside the checkpoint."""

    def adopt_into(self, store: Any) -> None:
        """Let the store that owns these rows go on from them."""

    def read(self, init: InitClient) -> Mapping[int, ClientState]:
        """Those whose state is no longer how it started; ``init`` says how the others start."""


class Store(ABC):
    """Where an engine keeps its clients' states."""

    damaged = False
    """Whether a state was lost, so that the store must not go into a checkpoint any more."""

    @abstractmethod
    def get(self, client: int) -> ClientState:
        """A client's state, or how it starts."""

    @abstractmethod
    def commit(self, updates: Mapping[int, ClientState]) -> None:
        """Replace the states of some clients."""

    @abstractmethod
    def touched(self) -> Iterator[tuple[int, ClientState]]:
        """The clients whose state is no longer how it started, in order."""

    def replace(self, updates: Mapping[int, ClientState]) -> Undo:
        """Replace the states of some clients.

        Returns:
            A function that puts the old states back.
        """
        previous = {client: self.get(client) for client in updates}
        self.commit(updates)
        return lambda: self.commit(previous)

    def gather(self, clients: Sequence[int]) -> State:
        """The method's states of some clients side by side."""
        states = [self.get(client).state for client in clients]
        fields: dict[str, Any] = {}
        for field, value in states[0].items():
            if isinstance(value, Vec):
                fields[field] = batched([cast(Vec, s[field]) for s in states])
            else:
                numbers = [float(cast(float, s[field])) for s in states]
                fields[field] = PerClient(torch.tensor(numbers, dtype=torch.float64))
        return State(**fields)

    def scatter(self, clients: Sequence[int], state: State) -> Undo:
        """Replace the method's states of some clients by those side by side.

        Returns:
            A function that puts the old states back.
        """
        columns: dict[str, Any] = {}
        for field, value in state.items():
            if isinstance(value, BatchedVec):
                columns[field] = [v.clone() for v in value.unbind()] or [Vec()] * len(clients)
            elif isinstance(value, PerClient):
                columns[field] = value.values.tolist()
            else:
                columns[field] = [value] * len(clients)
        states = [State(**{field: column[k] for field, column in columns.items()}) for k in range(len(clients))]
        previous = {client: self.get(client) for client in clients}
        self.commit({k: ClientState(s, previous[k].buffers) for k, s in zip(clients, states, strict=True)})
        return lambda: self.commit(previous)

    def snapshot(self, folder: Path) -> Snapshot:
        """The store as a checkpoint in a folder is to hold it."""
        del folder
        tensors: dict[str, Tensor] = {}
        notes: dict[str, Any] = {}
        for client, client_state in self.touched():
            state, state_note = flatten(f"client/{client}", client_state.state)
            buffers, buffer_note = flatten(f"buffers/{client}", {"all": client_state.buffers})
            tensors |= state | buffers
            notes[str(client)] = {"state": state_note, "buffers": buffer_note}
        return Snapshot(tensors, {"clients": notes})

    def restore(self, saved: SavedClients) -> None:
        """Go on from the clients of a checkpoint."""
        self.commit(dict(saved.read(self.get)))


def flatten(prefix: str, fields: Mapping[str, Value]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Named vectors and numbers as flat tensors and a JSON note from which :func:`restore` makes them again."""
    tensors: dict[str, Tensor] = {}
    note: dict[str, Any] = {}
    for field, value in fields.items():
        if isinstance(value, Vec):
            note[field] = list(value.names)
            tensors |= {f"{prefix}/{field}/{name}": tensor for name, tensor in value.items()}
        else:
            note[field] = float(value)
    return tensors, note


def restore(prefix: str, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> dict[str, Value]:
    """The inverse of :func:`flatten`."""
    return {
        field: Vec({n: tensors[f"{prefix}/{field}/{n}"] for n in value}) if isinstance(value, list) else float(value)
        for field, value in note.items()
    }
