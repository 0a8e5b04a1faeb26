"""Population: clients and their data, in memory or loaded when they are needed, and copies with other data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch

from fedapm.core.random import numpy_generator
from fedapm.core.samples import Samples
from fedapm.core.transform import Transform, check_by_sample
from fedapm.data.arrays import Label, as_inputs
from fedapm.data.clients import ClientData, check_client, check_enough, client_position, split
from fedapm.data.lazy.clients import Change, Integers, LazyClients, Numbered
from fedapm.data.splitting import held_out_count, limited
from fedapm.errors import FedapmError, did_you_mean

SAMPLED = 16
"""Clients whose samples go into the digest of a population that is not in memory."""


class Population:
    """Clients and their data, the same for every method and seed; :class:`fedapm.Federation` says how to make one."""

    def __init__(
        self,
        clients: Iterable[ClientData],
        name: str = "own data",
        *,
        class_names: Sequence[str] = (),
        modalities: Sequence[str] = (),
        validation: float = 0.0,
        unseen: Iterable[ClientData] = (),
        labels: Sequence[Label] = (),
        transform: Transform | None = None,
    ) -> None:
        self.labels = tuple(labels)
        self.transform = transform
        """What made the inputs of raw ones; None where they are as they were given."""
        self.clients: Sequence[ClientData] = clients if isinstance(clients, LazyClients) else list(clients)
        self.unseen: Sequence[ClientData] = unseen if isinstance(unseen, LazyClients) else list(unseen)
        self.name = name
        self.class_names = tuple(class_names)
        self.modalities = tuple(modalities)
        self.validation = validation
        """The share of training data that clients are evaluated on; 0 where it is their test data."""
        self._digest: str | None = None
        if not self.clients:
            raise FedapmError("a federation needs at least one client.")
        if isinstance(self.clients, LazyClients):
            _check_ids(self.clients.ids)
            return
        _check_ids([client.id for client in (*self.clients, *self.unseen)])
        for client in (*self.clients, *self.unseen):
            check_client(client)

    @property
    def lazy_clients(self) -> LazyClients | None:
        """The clients where they are loaded when they are needed; None where all are in memory."""
        return self.clients if isinstance(self.clients, LazyClients) else None

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, index: int) -> ClientData:
        return self.clients[index]

    def __repr__(self) -> str:
        if self.lazy_clients is not None:
            return f"Federation({self.name}: {len(self)} clients, loaded when they are needed)"
        samples = sum(len(c.train) + len(c.test) for c in self.clients)
        return f"Federation({self.name}: {len(self)} clients, {samples} samples)"

    @property
    def ids(self) -> Sequence[str]:
        """The ids of the clients, in order."""
        return self.lazy_clients.ids if self.lazy_clients is not None else [client.id for client in self.clients]

    @property
    def unseen_ids(self) -> Sequence[str]:
        """The ids of the clients that do not take part."""
        return self.unseen.ids if isinstance(self.unseen, LazyClients) else [client.id for client in self.unseen]

    @property
    def sizes(self) -> Sequence[int] | Integers | None:
        """How many training samples each client has; None where that is not known without reading all of them."""
        if self.lazy_clients is not None:
            return self.lazy_clients.sizes
        return self._sizes

    @cached_property
    def _sizes(self) -> list[int]:
        return [len(client.train) for client in self.clients]

    def size(self, client: int) -> int:
        """How many training samples a client has, by its position."""
        return self.lazy_clients.size(client) if self.lazy_clients is not None else len(self.clients[client].train)

    def sizes_of(self, clients: Sequence[int]) -> list[int]:
        """How many training samples some clients have, by their positions."""
        lazy = self.lazy_clients
        return [lazy.size(k) for k in clients] if lazy is not None else [self._sizes[k] for k in clients]

    def known_size(self, client: int) -> int:
        """The same without reading anything: 0 where it is not known yet."""
        return self.lazy_clients.known_size(client) if self.lazy_clients is not None else self.size(client)

    def read_ahead(self, clients: Sequence[int]) -> None:
        """Hear which clients are needed soon; where they are not in memory, they are read in a thread."""
        if self.lazy_clients is not None:
            self.lazy_clients.read_ahead(clients)

    def stop_reading(self) -> None:
        """Leave unread what was to be read ahead."""
        if self.lazy_clients is not None:
            self.lazy_clients.read_ahead(())
            self.lazy_clients.settle()

    def sample(self, count: int) -> Self:
        """A copy with so many clients, all in memory: always the same ones, or all where there are no more."""
        if self.lazy_clients is None:
            return self.first(count)
        clients = [self.clients[k] for k in self.lazy_clients.sample(count)]
        return self._with(clients, self.validation, [])

    @property
    def classes(self) -> int:
        """The number of classes over all clients, also those that are held out; 0 for regression."""
        if self.lazy_clients is not None:
            return self.lazy_clients.classes
        everyone = (*self.clients, *self.unseen)
        targets = [t for c in everyone for t in (c.train.targets, c.test.targets) if len(t)]
        if not self.clients[0].train.classified:
            return 0
        return max(len(self.class_names), 1 + max(int(t.max()) for t in targets))

    @property
    def seen_classes(self) -> list[int]:
        """The classes in the training data of the clients that take part; all of them where that is not known."""
        if self.lazy_clients is not None:
            return list(range(self.lazy_clients.classes))
        if not self.clients[0].train.classified:
            return []
        return sorted({int(label) for c in self.clients for label in c.train.targets.tolist()})

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each input of one sample."""
        return tuple(tuple(values.shape[1:]) for values in self.clients[0].train.inputs)

    @property
    def has_lengths(self) -> bool:
        """Whether the inputs are the values of all modalities followed by their lengths."""
        return bool(self.modalities) and len(self.clients[0].train.inputs) == 2 * len(self.modalities)

    def has(self, client: int, modality: str) -> bool:
        """Whether any of a client's samples has a modality."""
        return self._holds(self.clients[client], modality)

    def _holds(self, data: ClientData, modality: str) -> bool:
        if not self.has_lengths:
            return modality in self.modalities
        column = len(self.modalities) + self.modalities.index(modality)
        return any(bool((part.inputs[column] > 0).any()) for part in (data.train, data.test))

    def without(self, missing: Mapping[str, Iterable[int]]) -> Self:
        """A copy in which some clients lack some modalities.

        A missing modality has length 0 and values of zero.

        Args:
            missing: The positions of the clients that lack each modality.

        Raises:
            FedapmError: A modality is unknown, or a client would have none left.
        """
        for modality in missing:
            if modality not in self.modalities or not self.has_lengths:
                known = self.modalities if self.has_lengths else ()
                raise FedapmError(
                    f"{self.name} has no modality {modality!r} that a client could lack; "
                    f"{did_you_mean(modality, known) if known else 'none of its inputs can be missing.'}"
                )
        clients_without = {modality: set(positions) for modality, positions in missing.items()}

        def blanked(position: int, data: ClientData) -> ClientData:
            removed = [m for m, positions in clients_without.items() if position in positions]
            if removed and not any(self._holds(data, m) for m in self.modalities if m not in removed):
                raise FedapmError(f"client {data.id} would have no modality left; leave it one.")
            return ClientData(data.id, self._blanked(data.train, removed), self._blanked(data.test, removed))

        return self._with(self._changed(blanked), self.validation)

    def digest(self) -> str:
        """One sum over the ids and all samples of all clients: equal for equal data, whatever its order in memory.

        Of clients that are not in memory it takes the ids, the sizes where they are known, and the samples of a few.
        """
        if self._digest is None:
            total = hashlib.blake2b(digest_size=16)
            clients: Iterable[ClientData] = (*self.clients, *self.unseen) if self.lazy_clients is None else ()
            if (lazy := self.lazy_clients) is not None:
                names = str(len(lazy)) if isinstance(lazy.ids, Numbered) else "\0".join(lazy.ids)
                sizes = b"" if lazy.sizes is None else np.ascontiguousarray(lazy.sizes).tobytes()
                total.update(f"{lazy.classes}\0{names}\0".encode() + sizes)
                clients = (lazy[k] for k in lazy.sample(SAMPLED))
            for client in clients:
                for values in (*client.train.inputs, client.train.targets, *client.test.inputs, client.test.targets):
                    total.update(f"{client.id}\0{values.dtype}\0{tuple(values.shape)}\0".encode())
                    if values.numel():
                        total.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().data)
            self._digest = total.hexdigest()
        return self._digest

    def with_memory_format(self, memory_format: torch.memory_format) -> Self:
        """The federation with its pictures in another order in memory.

        With channels last it is this federation itself, rearranged client by client so that there are never two copies
        of all pictures. Another order is for networks that cannot do with this one, and is a copy.
        """
        tried = self.clients if self.lazy_clients is None else self.clients[:1]
        images = [t for c in tried for part in (c.train, c.test) for t in part.inputs if t.dim() == 4]
        if all(t.is_contiguous(memory_format=memory_format) for t in images):
            return self
        del images  # they would keep what is let go
        if self.lazy_clients is None and memory_format == torch.channels_last:
            for client in self.clients:
                client.train.rearrange(memory_format)
                client.test.rearrange(memory_format)
            return self

        def converted(_: int, client: ClientData) -> ClientData:
            parts = (replace(client.train), replace(client.test))
            for part in parts:
                part.rearrange(memory_format)
            return ClientData(client.id, *parts)

        copies = _COPIES.setdefault(self, WeakValueDictionary())
        there: Self | None = copies.get(str(memory_format))
        if there is None:
            there = copies[str(memory_format)] = self._with(self._changed(converted), self.validation)
        return there

    def with_float_inputs(self) -> Self:
        """A copy whose whole-number inputs are floats."""

        def converted(samples: Samples) -> Samples:
            inputs = tuple(t if t.is_floating_point() else t.float() for t in samples.inputs)
            return replace(samples, inputs=inputs)

        def both(_: int, data: ClientData) -> ClientData:
            return ClientData(data.id, converted(data.train), converted(data.test))

        return self._with(self._changed(both), self.validation, self._changed(both, self.unseen))

    def transformed(self, transform: Any) -> Self:
        """A copy whose inputs went through a transform, which goes with every model that is trained on them.

        From then on models are used with raw inputs: `predict` applies the transform, exports contain it or name it.

        Args:
            transform: A module, which is stored as TorchScript, or a function at the top of a Python file, which is
                stored by its name. It takes the inputs, one row a sample, and returns those of the network. It must
                treat every sample by itself.

        Raises:
            FedapmError: It cannot be stored, fails, or mixes samples; or there is a transform already.
        """
        if self.transform is not None:
            raise FedapmError(f"{self.name} has a transform already; write one that does both.")
        first = self.clients[0].train.inputs
        raw = tuple((tuple(t.shape[1:]), str(t.dtype).removeprefix("torch.")) for t in first)
        made = replace(Transform.of(transform), raw=raw)
        check_by_sample(made, first)

        def both(_: int, data: ClientData) -> ClientData:
            train = replace(data.train, inputs=as_inputs(made(data.train.inputs)))
            if not len(data.test):
                return ClientData(data.id, train, replace(data.test, inputs=train[:0].inputs))
            return ClientData(data.id, train, replace(data.test, inputs=as_inputs(made(data.test.inputs))))

        federation = self._with(self._changed(both), self.validation, self._changed(both, self.unseen))
        federation.transform = made
        return federation

    def limited(self, train: int | None, test: int | None, seed: int) -> Self:
        """A copy in which clients have fewer samples; the others are left aside.

        Training samples do not become test samples or the reverse, so that models trained on different numbers of
        samples are tested on the same ones.

        Args:
            train: At most so many training samples a client, in the proportions of its classes; all if None.
            test: At most so many test samples a client; all if None.
            seed: Fixes the choice.
        """

        def fewer(position: int, data: ClientData) -> ClientData:
            return ClientData(
                data.id,
                limited(data.train, train, numpy_generator(seed, "train limit", position)),
                limited(data.test, test, numpy_generator(seed, "test limit", position)),
            )

        return self._with(
            self._changed(fewer, sizes=lambda n: n if train is None else np.minimum(n, train)), self.validation
        )

    def for_validation(self, fraction: float, seed: int) -> Self:
        """A copy for choosing settings: a part of the training data takes the place of the test data.

        Args:
            fraction: The share of each client's training data that is held out.
            seed: Fixes the choice.
        """

        def parted(data: ClientData, *key: int | str) -> ClientData:
            check_enough(data.id, len(data.train))
            stream = numpy_generator(seed, "validation split", *key)
            return ClientData(data.id, *split(data.id, data.train, fraction, stream))

        def sizes(n: Integers) -> Integers | None:
            return None if self.clients[0].train.belong_together else n - held_out_count(n, fraction)

        clients = self._changed(lambda position, data: parted(data, position), sizes=sizes)
        unseen = self._changed(lambda _, data: parted(data, "unseen", data.id), self.unseen, sizes)
        return self._with(clients, fraction, unseen)

    def hold_out(self, unseen: float | Iterable[int | str], seed: int = 0) -> Self:
        """A copy in which some clients do not take part in training.

        At the end of a run each of them gets a personal part of its own, and is scored before and after.

        Args:
            unseen: The share of clients, drawn at random; or their ids.
            seed: Fixes the draw.

        Raises:
            FedapmError: There is no such client, or none would be left to train.
        """
        if isinstance(unseen, (int, float)):
            if not 0 <= unseen < 1:
                raise FedapmError(f"the share of clients that are held out must be below 1, not {unseen}.")
            order = numpy_generator(seed, "unseen").permutation(len(self))
            positions = {int(k) for k in order[: max(1, round(unseen * len(self))) if unseen else 0]}
        else:
            positions = {self.position(client) for client in unseen}
        if len(positions) == len(self):
            raise FedapmError(f"all {len(self)} clients are held out; leave some to train with.")
        if (lazy := self.lazy_clients) is not None:
            if len(self.unseen):
                raise FedapmError("clients that are loaded when they are needed can be held out only once.")
            stays = np.ones(len(self), bool)
            stays[list(positions)] = False
            held = lazy.chosen(np.flatnonzero(~stays)) if positions else ()
            return self._with(lazy.chosen(np.flatnonzero(stays)), self.validation, held)
        held_out = [c for k, c in enumerate(self.clients) if k in positions]
        clients = [c for k, c in enumerate(self.clients) if k not in positions]
        return self._with(clients, self.validation, [*self.unseen, *held_out])

    def first(self, count: int) -> Self:
        """A copy with so many clients, the first ones; the federation itself if it has no more."""
        if count >= len(self):
            return self
        lazy = self.lazy_clients
        return self._with(self.clients[:count] if lazy is None else lazy.chosen(range(count)), self.validation, [])

    def position(self, client: int | str) -> int:
        """The position of a client, given its id or its position."""
        return client_position(self.ids, client)

    def _changed(
        self,
        change: Change,
        clients: Sequence[ClientData] | None = None,
        sizes: Callable[[Integers], Integers | None] = lambda n: n,
    ) -> Sequence[ClientData]:
        """Clients with other data, made now or when they are loaded.

        Args:
            change: What makes a client's data, given its position.
            clients: The clients; those that take part if None.
            sizes: How many training samples each has then, given how many it had.
        """
        some = self.clients if clients is None else clients
        if isinstance(some, LazyClients):
            return some.changed(change, None if some.sizes is None else sizes(some.sizes))
        return [change(position, data) for position, data in enumerate(some)]

    def _with(
        self, clients: Sequence[ClientData], validation: float, unseen: Sequence[ClientData] | None = None
    ) -> Self:
        return type(self)(
            clients,
            self.name,
            class_names=self.class_names,
            modalities=self.modalities,
            validation=validation,
            unseen=self.unseen if unseen is None else unseen,
            labels=self.labels,
            transform=self.transform,
        )

    def _blanked(self, samples: Samples, removed: Sequence[str]) -> Samples:
        inputs = list(samples.inputs)
        for modality in removed:
            column = self.modalities.index(modality)
            for k in (column, len(self.modalities) + column):
                inputs[k] = torch.zeros_like(inputs[k])
        return replace(samples, inputs=tuple(inputs))


def _check_ids(ids: Sequence[str]) -> None:
    if isinstance(ids, Numbered) or len(set(ids)) == len(ids):
        return
    seen: set[str] = set()
    for client in ids:
        if client in seen:
            raise FedapmError(f"two clients are called {client!r}; give each its own id.")
        seen.add(client)


_COPIES: WeakKeyDictionary[Population, WeakValueDictionary[str, Any]] = WeakKeyDictionary()
"""Copies in another memory format that somebody still uses: all runs of a comparison have one between them."""
