"""Store: what every client keeps between rounds, and how it goes into a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from fedapm.algorithm import State, Value
from fedapm.vec import Vec


@dataclass(frozen=True)
class Kept:
    """One client's memory: the method's state, and its network's buffers."""

    state: State
    buffers: Vec


class Store(Protocol):
    """Where the engine keeps clients' memories."""

    def get(self, client: int) -> Kept:
        """A client's memory, or how it starts."""

    def commit(self, updates: Mapping[int, Kept]) -> None:
        """Replace the memories of some clients."""

    def touched(self) -> Iterator[tuple[int, Kept]]:
        """The clients whose memory is no longer how it started."""


class MemoryStore:
    """Everything in memory; a client costs nothing until it has taken part."""

    def __init__(self, start: Callable[[int], Kept]) -> None:
        self._start = start
        self._kept: dict[int, Kept] = {}

    def get(self, client: int) -> Kept:
        """A client's memory, or how it starts."""
        return self._kept[client] if client in self._kept else self._start(client)

    def commit(self, updates: Mapping[int, Kept]) -> None:
        """Replace the memories of some clients."""
        self._kept |= updates

    def touched(self) -> Iterator[tuple[int, Kept]]:
        """The clients whose memory is no longer how it started, in order."""
        yield from sorted(self._kept.items())


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
