"""Federation: clients, each with its own training and test data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedapm.core.random import numpy_generator
from fedapm.core.samples import Samples
from fedapm.data.partition import Partitioner
from fedapm.data.partition import by_id as partition_by_id
from fedapm.errors import FedapmError, did_you_mean

Arrays = Any
"""An array, a tensor, or a tuple of them (one for each input of the network)."""


@dataclass(frozen=True)
class ClientData:
    """The data of one client."""

    id: str
    train: Samples
    test: Samples

    @property
    def classes(self) -> int:
        """The number of classes in the training data; 0 for regression."""
        return len(set(self.train.targets.tolist())) if self.train.classified else 0


class Federation:
    """Clients and their data, the same for every method and seed.

    Build one with :meth:`from_arrays`, :meth:`from_clients`, :meth:`from_datasets` or :meth:`from_parts`.

    Args:
        clients: The clients; ids must be unique.
        name: The name of the data, for reports.
        class_names: The names of the classes, in order.
        modalities: The names of the modalities, in the order of the inputs.
        validation: The share of the training data that is used for testing; 0 if the test data is used.
        unseen: Clients that do not take part in training and are scored at the end of a run; see :meth:`hold_out`.

    Raises:
        FedapmError: There is no client, two have the same id, or one has no training data, negative classes, or NaN.
    """

    def __init__(
        self,
        clients: Iterable[ClientData],
        name: str = "own data",
        *,
        class_names: Sequence[str] = (),
        modalities: Sequence[str] = (),
        validation: float = 0.0,
        unseen: Iterable[ClientData] = (),
    ) -> None:
        self.clients, self.unseen = list(clients), list(unseen)
        self.name = name
        self.class_names = tuple(class_names)
        self.modalities = tuple(modalities)
        self.validation = validation
        """The share of training data that clients are evaluated on; 0 where it is their test data."""
        self._digest: str | None = None
        if not self.clients:
            raise FedapmError("a federation needs at least one client.")
        seen: set[str] = set()
        for client in (*self.clients, *self.unseen):
            if client.id in seen:
                raise FedapmError(f"two clients are called {client.id!r}; give each its own id.")
            seen.add(client.id)
            if len(client.train) == 0:
                raise FedapmError(f"client {client.id} has no training data; leave it out or give it some.")
            if client.train.classified and int(client.train.targets.min()) < 0:
                lowest = int(client.train.targets.min())
                raise FedapmError(f"client {client.id} has the class {lowest}; classes are numbered from 0.")
            for part, samples in (("training", client.train), ("test", client.test)):
                for values in (*samples.inputs, samples.targets):
                    if values.is_floating_point() and not _all_finite(values):
                        raise FedapmError(f"client {client.id}: its {part} data holds NaN or infinite values.")

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, index: int) -> ClientData:
        return self.clients[index]

    def __repr__(self) -> str:
        samples = sum(len(c.train) + len(c.test) for c in self.clients)
        return f"Federation({self.name}: {len(self)} clients, {samples} samples)"

    @property
    def classes(self) -> int:
        """The number of classes over all clients, also those that are held out; 0 for regression."""
        everyone = (*self.clients, *self.unseen)
        targets = [t for c in everyone for t in (c.train.targets, c.test.targets) if len(t)]
        if not self.clients[0].train.classified:
            return 0
        return max(len(self.class_names), 1 + max(int(t.max()) for t in targets))

    @property
    def seen_classes(self) -> list[int]:
        """The classes in the training data of the clients that take part."""
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
        if not self.has_lengths:
            return modality in self.modalities
        column = len(self.modalities) + self.modalities.index(modality)
        data = self.clients[client]
        return any(bool((part.inputs[column] > 0).any()) for part in (data.train, data.test))

    def without(self, missing: Mapping[str, Iterable[int]]) -> Federation:
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
        clients = []
        for position, data in enumerate(self.clients):
            removed = [m for m, positions in clients_without.items() if position in positions]
            if removed and not any(self.has(position, m) for m in self.modalities if m not in removed):
                raise FedapmError(f"client {data.id} would have no modality left; leave it one.")
            clients.append(ClientData(data.id, self._blanked(data.train, removed), self._blanked(data.test, removed)))
        return self._with(clients, self.validation)

    def digest(self) -> str:
        """One sum over the ids and all samples of all clients: equal for equal data, whatever its order in memory."""
        if self._digest is None:
            total = hashlib.blake2b(digest_size=16)
            for client in (*self.clients, *self.unseen):
                for values in (*client.train.inputs, client.train.targets, *client.test.inputs, client.test.targets):
                    total.update(f"{client.id}\0{values.dtype}\0{tuple(values.shape)}\0".encode())
                    if values.numel():
                        total.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().data)
            self._digest = total.hexdigest()
        return self._digest

    def with_memory_format(self, memory_format: torch.memory_format) -> Federation:
        """A copy whose images have another memory format; the federation itself if they already have it."""
        images = [t for c in self.clients for part in (c.train, c.test) for t in part.inputs if t.dim() == 4]
        if all(t.is_contiguous(memory_format=memory_format) for t in images):
            return self

        def converted(samples: Samples) -> Samples:
            inputs = (t.contiguous(memory_format=memory_format) if t.dim() == 4 else t for t in samples.inputs)
            return Samples(tuple(inputs), samples.targets)

        clients = [ClientData(c.id, converted(c.train), converted(c.test)) for c in self.clients]
        return self._with(clients, self.validation)

    def limited(self, train: int | None, test: int | None, seed: int) -> Federation:
        """A copy in which clients have fewer samples; the others are left aside.

        Training samples do not become test samples or the reverse, so that models trained on different numbers of
        samples are tested on the same ones.

        Args:
            train: At most so many training samples a client, in the proportions of its classes; all if None.
            test: At most so many test samples a client; all if None.
            seed: Fixes the choice.
        """
        clients = [
            ClientData(
                c.id,
                _limited(c.train, train, numpy_generator(seed, "train limit", position)),
                _limited(c.test, test, numpy_generator(seed, "test limit", position)),
            )
            for position, c in enumerate(self.clients)
        ]
        return self._with(clients, self.validation)

    def for_validation(self, fraction: float, seed: int) -> Federation:
        """A copy for choosing settings: a part of the training data takes the place of the test data.

        Args:
            fraction: The share of each client's training data that is held out.
            seed: Fixes the choice.
        """

        def parted(data: ClientData, *key: int | str) -> ClientData:
            _check_enough(data.id, len(data.train))
            train, held_out = split_samples(data.train, fraction, numpy_generator(seed, "validation split", *key))
            return ClientData(data.id, train, held_out)

        clients = [parted(data, position) for position, data in enumerate(self.clients)]
        unseen = [parted(data, "unseen", data.id) for data in self.unseen]
        return self._with(clients, fraction, unseen)

    def hold_out(self, unseen: float | Iterable[int | str], seed: int = 0) -> Federation:
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
        held_out = [c for k, c in enumerate(self.clients) if k in positions]
        clients = [c for k, c in enumerate(self.clients) if k not in positions]
        return self._with(clients, self.validation, [*self.unseen, *held_out])

    def _with(self, clients: list[ClientData], validation: float, unseen: list[ClientData] | None = None) -> Federation:
        return Federation(
            clients,
            self.name,
            class_names=self.class_names,
            modalities=self.modalities,
            validation=validation,
            unseen=self.unseen if unseen is None else unseen,
        )

    def _blanked(self, samples: Samples, removed: Sequence[str]) -> Samples:
        inputs = list(samples.inputs)
        for modality in removed:
            column = self.modalities.index(modality)
            for k in (column, len(self.modalities) + column):
                inputs[k] = torch.zeros_like(inputs[k])
        return Samples(tuple(inputs), samples.targets)

    def position(self, client: int | str) -> int:
        """The position of a client, given its id or its position."""
        return client_position([c.id for c in self.clients], client)

    @classmethod
    def from_arrays(
        cls,
        x: Arrays,
        y: Any,
        clients: Sequence[Any] | np.ndarray[Any, Any] | Partitioner,
        *,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
    ) -> Federation:
        """Build a federation from one data set.

        Args:
            x: The inputs: an array, or a tuple of arrays for a network with several inputs.
            y: The targets: whole numbers from 0 for classes, floats for regression.
            clients: The client id of each sample, or a partitioner that assigns samples to clients.
            test_fraction: The share of each client's samples that is held out for testing, stratified by class.
            seed: Fixes the partition and the test split.
            name: The name of the data, for reports.
        """
        samples = _samples(x, y)
        labels = samples.targets.numpy()
        if isinstance(clients, Partitioner):
            parts = {str(k): p for k, p in enumerate(clients(labels, numpy_generator(seed, "partition")))}
        else:
            parts = partition_by_id(clients)
            if (count := sum(map(len, parts.values()))) != len(samples):
                raise FedapmError(f"there are {len(samples)} samples but {count} client ids.")
        return cls(_clients(samples, parts, test_fraction, seed), name)

    @classmethod
    def from_parts(
        cls,
        x: Arrays,
        y: Any,
        parts: Mapping[str, np.ndarray[Any, Any]],
        *,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
        class_names: Sequence[str] = (),
        modalities: Sequence[str] = (),
    ) -> Federation:
        """Build a federation from one data set and the positions of each client's samples.

        Args:
            x: The inputs, as in :meth:`from_arrays`.
            y: The targets, as in :meth:`from_arrays`.
            parts: The positions of each client's samples, by id.
            test_fraction: The share of each client's samples that is held out for testing, stratified by class.
            seed: Fixes the test split.
            name: The name of the data, for reports.
            class_names: The names of the classes, in order.
            modalities: The names of the modalities, in the order of the inputs.
        """
        clients = _clients(_samples(x, y), parts, test_fraction, seed)
        return cls(clients, name, class_names=class_names, modalities=modalities)

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[Any, tuple[Arrays, Any]] | Sequence[tuple[Arrays, Any]],
        *,
        test: Mapping[Any, tuple[Arrays, Any]] | Sequence[tuple[Arrays, Any]] | None = None,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
    ) -> Federation:
        """Build a federation from data that is already divided by client.

        Args:
            clients: ``(x, y)`` of each client, by id or in a list.
            test: The test data of each client; if None, it is split off the clients' data.
            test_fraction: The share that is held out for testing if ``test`` is None.
            seed: Fixes the test split.
            name: The name of the data, for reports.
        """
        train_of, test_of = _named(clients), _named(test) if test is not None else None
        for client in test_of or {}:
            if client not in train_of:
                raise FedapmError(
                    f"client {client} has test data but no training data; {did_you_mean(client, train_of)}"
                )
        members = []
        for position, (client, (x, y)) in enumerate(train_of.items()):
            samples = _samples(x, y)
            if test_of is not None:
                if client not in test_of:
                    raise FedapmError(f"client {client} has training data but no test data.")
                members.append(ClientData(client, samples, _same_kind(_samples(*test_of[client]), samples, client)))
                continue
            if len(samples):
                _check_enough(client, len(samples))
            index = np.arange(len(samples))
            stream = numpy_generator(seed, "test split", position)
            train, held_out = split_test(index, samples.targets.numpy(), samples.classified, test_fraction, stream)
            members.append(ClientData(client, samples[torch.as_tensor(train)], samples[torch.as_tensor(held_out)]))
        return cls(members, name)

    @classmethod
    def from_datasets(
        cls,
        clients: Mapping[Any, Dataset[Any]] | Sequence[Dataset[Any]],
        *,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
    ) -> Federation:
        """Build a federation from torch datasets, which are read into memory.

        Args:
            clients: The dataset of each client, by id or in a list; it yields ``(x, y)`` or ``(x1, x2, …, y)``.
            test_fraction: The share of each client's samples that is held out for testing, stratified by class.
            seed: Fixes the test split.
            name: The name of the data, for reports.
        """
        read = {client: _read(dataset, client) for client, dataset in _named(clients).items()}
        return cls.from_clients(read, test_fraction=test_fraction, seed=seed, name=name)


def client_position(ids: Sequence[str], client: int | str) -> int:
    """Where a client stands among these, given its id (or its position as a number)."""
    if str(client) in ids:
        return ids.index(str(client))
    if isinstance(client, int) and 0 <= client < len(ids):
        return client
    raise FedapmError(f"there is no client {client!r}; the ids are {', '.join(ids[:8])}{', …' * (len(ids) > 8)}.")


def split_test(
    index: np.ndarray[Any, Any],
    labels: np.ndarray[Any, Any],
    stratify: bool,
    fraction: float,
    stream: np.random.Generator,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Split a client's samples into training and test, with at least one sample in each.

    Args:
        index: The positions of the client's samples.
        labels: The class of each sample of the data set.
        stratify: Whether the same fraction of each class goes to test, as nearly as whole samples allow.
        fraction: The share of samples for testing.
        stream: The source of randomness.

    Returns:
        The sorted positions of the training samples, and of the test samples.
    """
    if not 0 < fraction < 1:
        raise FedapmError(f"the test fraction must be between 0 and 1, not {fraction}.")
    count = min(max(round(fraction * len(index)), 1), len(index) - 1)
    shuffled = _random_order(index, labels, stratify, stream)
    return np.sort(shuffled[count:]), np.sort(shuffled[:count])


def _random_order(
    index: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], stratify: bool, stream: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Samples in random order; stratified, the first ones have the classes in the proportions of all."""
    shuffled = stream.permutation(index)
    if not stratify:
        return shuffled
    # by the rank of each sample within its class, as a share of the class
    share = np.empty(len(shuffled))
    for value in np.unique(labels[shuffled]):
        members = np.flatnonzero(labels[shuffled] == value)
        share[members] = (np.arange(len(members)) + 0.5) / len(members)
    return shuffled[np.argsort(share, kind="stable")]


def _limited(samples: Samples, limit: int | None, stream: np.random.Generator) -> Samples:
    if limit is None or len(samples) <= limit:
        return samples
    order = _random_order(np.arange(len(samples)), samples.targets.numpy(), samples.classified, stream)
    return samples[torch.as_tensor(np.sort(order[:limit]))]


def split_samples(samples: Samples, fraction: float, stream: np.random.Generator) -> tuple[Samples, Samples]:
    """Hold a share of some samples out, stratified by class: the samples that stay, and those held out."""
    index, labels = np.arange(len(samples)), samples.targets.numpy()
    kept, held_out = split_test(index, labels, samples.classified, fraction, stream)
    return samples[torch.as_tensor(kept)], samples[torch.as_tensor(held_out)]


def _all_finite(values: Tensor) -> bool:
    # a finite sum has finite terms and is much faster to check; a sum of large finite terms may still overflow
    return bool(torch.isfinite(values.sum(dtype=torch.float32))) or bool(torch.isfinite(values).all())


def _clients(
    samples: Samples, parts: Mapping[str, np.ndarray[Any, Any]], test_fraction: float, seed: int
) -> list[ClientData]:
    labels = samples.targets.numpy()
    clients = []
    for position, (client, index) in enumerate(parts.items()):
        _check_enough(client, len(index))
        stream = numpy_generator(seed, "test split", position)
        train, test = split_test(index, labels, samples.classified, test_fraction, stream)
        clients.append(ClientData(client, samples[torch.as_tensor(train)], samples[torch.as_tensor(test)]))
    return clients


def _named(clients: Mapping[Any, Any] | Sequence[Any]) -> dict[str, Any]:
    items = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    named: dict[str, Any] = {}
    for key, value in items:
        if key is None or bool(key != key):
            raise FedapmError(f"{key} is no id of a client; give each its own name or number.")
        if str(key) in named:
            raise FedapmError(f"two clients are called {str(key)!r}; give each its own id.")
        named[str(key)] = value
    return named


def _check_enough(client: str, count: int) -> None:
    if count < 2:
        raise FedapmError(
            f"client {client} has {count} sample(s), too few to train and test; leave it out or use fewer clients."
        )


def _same_kind(test: Samples, train: Samples, client: str) -> Samples:
    if test.classified == train.classified:
        return test
    if len(test) == 0:
        return Samples(test.inputs, test.targets.to(train.targets.dtype))
    raise FedapmError(f"client {client}: of training and test targets one has classes (integers), the other floats.")


def as_inputs(x: Arrays) -> tuple[Tensor, ...]:
    """Convert arrays to what a network is called with; float64 arrays become float32."""
    return tuple(_tensor(part) for part in (x if isinstance(x, tuple) else (x,)))


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_quantized or values.is_meta:
            raise FedapmError("data must be plain tensors, not sparse, quantized or empty of data; convert it first.")
        tensor = values.detach().cpu()
    else:
        array = _array(values)
        tensor = torch.as_tensor(array if array.flags.writeable else array.copy())
    if not tensor.ndim:
        raise FedapmError("data must be arrays with one row a sample, not a single number.")
    # float64 is numpy's default and rarely intended, while a double tensor is
    return tensor.float() if tensor.dtype == torch.float64 and not isinstance(values, Tensor) else tensor


def _array(values: Any) -> np.ndarray[Any, Any]:
    """An array of numbers as torch takes it, in the machine's own order of bytes."""
    if np.ma.is_masked(values):
        raise FedapmError("data must be whole, but an array has masked values; fill them or leave those samples out.")
    try:
        array = np.ascontiguousarray(values) if np.ndim(values) else np.asarray(values)
    except ValueError:
        raise FedapmError("data must be an array, but its rows differ in length; pad them to one length.") from None
    if array.dtype.kind not in "biuf":
        raise FedapmError(f"data must be numbers, but an array has the type {array.dtype}; convert it first.")
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        # half precision is for storage, and torch has nothing longer than double
        return array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        # torch can hold these but hardly compute with them
        return array.astype(np.int64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _samples(x: Arrays, y: Any) -> Samples:
    targets = _tensor(y)
    return Samples(as_inputs(x), targets if targets.is_floating_point() else targets.long())


def _read(dataset: Dataset[Any], client: str) -> tuple[tuple[Tensor, ...], Tensor]:
    if not isinstance(dataset, Sized):
        raise FedapmError(f"client {client}: its dataset has no length; give one that can be indexed.")
    rows = [dataset[k] for k in range(len(dataset))]
    if not rows:
        raise FedapmError(f"client {client} has no training data; leave it out or give it some.")
    if not isinstance(rows[0], (tuple, list)) or len(rows[0]) < 2:
        raise FedapmError(f"client {client}: its dataset should yield (x, y) pairs.")
    columns = [
        torch.stack([row[k] for row in rows]) if isinstance(rows[0][k], Tensor) else _tensor([row[k] for row in rows])
        for k in range(len(rows[0]))
    ]
    return tuple(columns[:-1]), columns[-1]
