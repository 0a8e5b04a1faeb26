"""Clients in a row whose samples are read when somebody asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch

from fedapm.core.random import numpy_generator
from fedapm.data.clients import ClientData, check_client
from fedapm.data.lazy.cache import MEMORY, ClientCache
from fedapm.errors import FedapmError

Integers = np.ndarray[Any, np.dtype[np.int64]]
Change = Callable[[int, ClientData], ClientData]
"""What makes other data of a client's, given its position."""
Load = Callable[[list[int]], list[ClientData]]
"""What loads some clients, given their positions."""


class Numbered(Sequence[str]):
    """The ids 0, 1, 2, … of so many clients, none of which is held in memory."""

    def __init__(self, count: int) -> None:
        self.total = count

    def __len__(self) -> int:
        return self.total

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One id, or some."""
        found = range(self.total)[index]
        return str(found) if isinstance(found, int) else [str(k) for k in found]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.isdecimal() and str(int(name)) == name and int(name) < self.total

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The position of an id."""
        if value not in self:
            raise ValueError(value)
        return range(start, self.total if stop is None else stop).index(int(value)) + start


@dataclass(frozen=True)
class Form:
    """What one sample looks like."""

    inputs: tuple[tuple[torch.Size, torch.dtype], ...]
    """The shape and the type of each input."""
    target: tuple[torch.Size, torch.dtype]

    @classmethod
    def of(cls, client: ClientData) -> Form:
        """That of a client's training samples."""
        train = client.train
        (*inputs, target) = [(t.shape[1:], t.dtype) for t in (*train.inputs, train.targets)]
        return cls(tuple(inputs), target)

    def __str__(self) -> str:
        def kind(dtype: torch.dtype) -> str:
            return str(dtype).removeprefix("torch.")

        inputs = " and ".join(f"{tuple(shape)} {kind(dtype)}" for shape, dtype in self.inputs)
        shape, dtype = self.target
        return f"inputs {inputs} and targets {tuple(shape) or ''} {kind(dtype)}".replace("  ", " ")


class LazyClients(Sequence[ClientData]):
    """Clients whose samples are in memory only while they are needed.

    Args:
        ids: Their ids.
        load: Loads some clients by their positions; always the same data.
        classes: How many classes there are; 0 for quantities.
        sizes: How many training samples each has; None where that is not known without reading them.
        memory: How many bytes of clients' data are kept.
    """

    def __init__(
        self,
        ids: Sequence[str],
        load: Load,
        *,
        classes: int,
        sizes: Integers | None = None,
        memory: int = MEMORY,
    ) -> None:
        self.ids, self.classes, self.sizes, self.memory = ids, classes, sizes, memory
        self._load = load
        self._cache = ClientCache(self._checked, memory)
        self._form: Form | None = None
        self._found = np.zeros(len(ids), np.int32) if sizes is None else None
        """How many training samples those have that were loaded, where nothing else says it."""

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> ClientData: ...
    @overload
    def __getitem__(self, index: slice) -> list[ClientData]: ...
    def __getitem__(self, index: int | slice) -> ClientData | list[ClientData]:
        """One client, or some, loaded where they are not in memory."""
        if isinstance(index, slice):
            return [self._cache.get(k) for k in range(len(self))[index]]
        return self._cache.get(range(len(self))[index])

    @property
    def bytes(self) -> int:
        """What the clients in memory take."""
        return self._cache.bytes

    def size(self, client: int) -> int:
        """How many training samples a client has; it is loaded once where nothing else says it."""
        if self.sizes is not None:
            return int(self.sizes[client])
        return self.known_size(client) or len(self[client].train)

    def known_size(self, client: int) -> int:
        """The same without loading anything: 0 where it is not known yet."""
        known = self.sizes if self.sizes is not None else self._found
        assert known is not None
        return int(known[client])

    def read_ahead(self, clients: Sequence[int]) -> None:
        """Read these clients in a thread, because they are needed soon."""
        self._cache.read_ahead(clients)

    def settle(self) -> None:
        """Wait until nothing is read ahead any more."""
        self._cache.settle()

    def changed(self, change: Change, sizes: Integers | None) -> LazyClients:
        """The same clients with other data, which is made when they are loaded.

        Args:
            change: What makes it.
            sizes: How many training samples each has then; None where that is not known.
        """
        load = self._load
        return self._like(
            self.ids, lambda some: [change(k, client) for k, client in zip(some, load(some), strict=True)], sizes
        )

    def chosen(self, positions: Sequence[int] | Integers) -> LazyClients:
        """Some of the clients, in this order."""
        index = np.asarray(positions, np.int64)
        load, sizes = self._load, self.sizes
        ids = Numbered(len(index)) if isinstance(self.ids, Numbered) and _is_beginning(index) else None
        return self._like(
            ids if ids is not None else tuple(self.ids[int(k)] for k in index),
            lambda some: load(index[some].tolist()),
            None if sizes is None else sizes[index],
        )

    def sample(self, count: int) -> list[int]:
        """The positions of so many clients, always the same ones, among them the first; all where there are fewer."""
        if count >= len(self):
            return list(range(len(self)))
        drawn = numpy_generator(0, "sample of clients", len(self)).choice(len(self), size=count - 1, replace=False)
        return sorted({0, *drawn.tolist()})

    def _like(self, ids: Sequence[str], load: Load, sizes: Integers | None) -> LazyClients:
        return LazyClients(ids, load, classes=self.classes, sizes=sizes, memory=self.memory)

    def _checked(self, positions: list[int]) -> list[ClientData]:
        clients = self._load(positions)
        if self._form is None:
            first = clients[0] if positions[0] == 0 else self._load([0])[0]
            check_client(clients[0])
            self._form = Form.of(first)
        if not self._fine(clients):
            for client in clients:
                self._check(client, self._form)
        if self._found is not None:
            self._found[positions] = [len(client.train) for client in clients]
        return clients

    def _fine(self, clients: Sequence[ClientData]) -> bool:
        """Whether it is plain that nothing is wrong with any of these; much faster than looking at each."""
        parts = [part for client in clients for part in (client.train, client.test) if len(part)]
        if any(not len(client.train) or Form.of(client) != self._form for client in clients):
            return False
        values = [t for part in parts for t in (*part.inputs, part.targets) if t.is_floating_point()]
        # a finite sum has finite terms
        if values and not math.isfinite(torch.stack([t.sum(dtype=torch.float32) for t in values]).sum().item()):
            return False
        classes = [part.targets.flatten() for part in parts if part.classified]
        if not classes:
            return True
        lowest, highest = torch.aminmax(torch.cat(classes))
        return int(lowest) >= 0 and (not self.classes or int(highest) < self.classes)

    def _check(self, client: ClientData, form: Form) -> None:
        """Say what is wrong with a client."""
        check_client(client)
        if (own := Form.of(client)) != form:
            raise FedapmError(
                f"client {client.id} has {own}, client {self.ids[0]} {form}; bring all clients to one form."
            )
        if self.classes and (highest := _highest(client)) >= self.classes:
            raise FedapmError(
                f"client {client.id} has the class {highest}, but there are {self.classes} classes, numbered from 0; "
                "give their right number (classes) or all of their names (class_names)."
            )


def _is_beginning(index: Integers) -> bool:
    return bool((index == np.arange(len(index))).all())


def _highest(client: ClientData) -> int:
    parts = [part.targets for part in (client.train, client.test) if len(part) and part.classified]
    return max((int(targets.max()) for targets in parts), default=0)
