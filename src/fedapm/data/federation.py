"""Federation: clients, each with its own training and test data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.core.random import numpy_generator
from fedapm.core.samples import Samples
from fedapm.core.transform import Transform, check_by_sample
from fedapm.data import readers
from fedapm.data.arrays import Arrays, Label, LabelCode, as_inputs, as_samples, find_label_code
from fedapm.data.clients import (
    ClientData,
    by_name,
    check_enough,
    client_position,
    columns_of,
    divided,
    same_kind,
    samples_of,
    split,
    test_flags,
)
from fedapm.data.partition import Partitioner
from fedapm.data.partition import by_id as partition_by_id
from fedapm.data.splitting import limited
from fedapm.errors import FedapmError, did_you_mean


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
        labels: The label that each class had before it was numbered, where labels were not numbered from 0.
        transform: What made the inputs of raw ones; see :meth:`transformed`.

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
        labels: Sequence[Label] = (),
        transform: Transform | None = None,
    ) -> None:
        self.labels = tuple(labels)
        self.transform = transform
        """What made the inputs of raw ones; None where they are as they were given."""
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
                raise FedapmError(
                    f"client {client.id} has the class {lowest}; classes are numbered from 0, as in y - y.min()."
                )
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
    def ids(self) -> list[str]:
        """The ids of the clients, in order."""
        return [client.id for client in self.clients]

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
            return replace(samples, inputs=tuple(inputs))

        clients = [ClientData(c.id, converted(c.train), converted(c.test)) for c in self.clients]
        return self._with(clients, self.validation)

    def with_float_inputs(self) -> Federation:
        """A copy whose whole-number inputs are floats."""

        def converted(samples: Samples) -> Samples:
            inputs = tuple(t if t.is_floating_point() else t.float() for t in samples.inputs)
            return replace(samples, inputs=inputs)

        def both(data: ClientData) -> ClientData:
            return ClientData(data.id, converted(data.train), converted(data.test))

        return self._with([both(c) for c in self.clients], self.validation, [both(c) for c in self.unseen])

    def transformed(self, transform: Any) -> Federation:
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

        def both(data: ClientData) -> ClientData:
            train = replace(data.train, inputs=as_inputs(made(data.train.inputs)))
            if not len(data.test):
                return ClientData(data.id, train, replace(data.test, inputs=train[:0].inputs))
            return ClientData(data.id, train, replace(data.test, inputs=as_inputs(made(data.test.inputs))))

        federation = self._with([both(c) for c in self.clients], self.validation, [both(c) for c in self.unseen])
        federation.transform = made
        return federation

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
                limited(c.train, train, numpy_generator(seed, "train limit", position)),
                limited(c.test, test, numpy_generator(seed, "test limit", position)),
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
            check_enough(data.id, len(data.train))
            stream = numpy_generator(seed, "validation split", *key)
            return ClientData(data.id, *split(data.id, data.train, fraction, stream))

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

    def first(self, count: int) -> Federation:
        """A copy with so many clients, the first ones; the federation itself if it has no more."""
        return self if count >= len(self) else self._with(self.clients[:count], self.validation, [])

    def _with(self, clients: list[ClientData], validation: float, unseen: list[ClientData] | None = None) -> Federation:
        return Federation(
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

    def position(self, client: int | str) -> int:
        """The position of a client, given its id or its position."""
        return client_position(self.ids, client)

    @classmethod
    def from_arrays(
        cls,
        x: Arrays,
        y: Any,
        clients: Sequence[Any] | np.ndarray[Any, Any] | Partitioner,
        *,
        groups: Any = None,
        time: Any = None,
        test: Any = None,
        class_names: Sequence[str] = (),
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
    ) -> Federation:
        """Build a federation from one data set.

        Args:
            x: The inputs: an array, or a tuple of arrays for a network with several inputs.
            y: The targets: classes as whole numbers or text, or quantities as floats. Text, and whole numbers that
                begin at 1 or above, are numbered in sorted order; their names are kept.
            clients: The client id of each sample, or a partitioner that assigns samples to clients.
            groups: The recording that each sample is a part of; no split has one on both sides.
            time: When each sample was taken; splits hold out the latest ones.
            test: Which samples are for testing, as true and false; if None, they are split off each client's data.
            class_names: The names of the classes, in order; whole-number labels are then positions in it.
            test_fraction: The share of each client's samples that is held out for testing, stratified by class.
            seed: Fixes the partition and the test split.
            name: The name of the data, for reports.
        """
        code = find_label_code([y], class_names)
        samples = as_samples(x, y, code, groups, time)
        labels = samples.targets.numpy()
        if isinstance(clients, Partitioner):
            parts = {str(k): p for k, p in enumerate(clients(labels, numpy_generator(seed, "partition")))}
        else:
            parts = partition_by_id(clients)
            if (count := sum(map(len, parts.values()))) != len(samples):
                raise FedapmError(f"there are {len(samples)} samples but {count} client ids.")
        return cls(
            divided(samples, parts, test_fraction, seed, None if test is None else test_flags(test, len(samples))),
            name,
            class_names=_names(class_names, code),
            labels=code.values if code is not None else (),
        )

    @classmethod
    def from_parts(
        cls,
        x: Arrays,
        y: Any,
        parts: Mapping[str, np.ndarray[Any, Any]],
        *,
        groups: Any = None,
        time: Any = None,
        test: Any = None,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
        class_names: Sequence[str] = (),
        labels: Sequence[Label] = (),
        modalities: Sequence[str] = (),
    ) -> Federation:
        """Build a federation from one data set and the positions of each client's samples.

        Args:
            x: The inputs, as in :meth:`from_arrays`.
            y: The targets: classes numbered from 0, or floats.
            parts: The positions of each client's samples, by id.
            groups: As in :meth:`from_arrays`.
            time: As in :meth:`from_arrays`.
            test: As in :meth:`from_arrays`.
            test_fraction: The share of each client's samples that is held out for testing, stratified by class.
            seed: Fixes the test split.
            name: The name of the data, for reports.
            class_names: The names of the classes, in order.
            labels: The label that each class had before it was numbered, if it was.
            modalities: The names of the modalities, in the order of the inputs.
        """
        samples = as_samples(x, y, None, groups, time)
        clients = divided(samples, parts, test_fraction, seed, None if test is None else test_flags(test, len(samples)))
        return cls(clients, name, class_names=class_names, modalities=modalities, labels=labels)

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[Any, Any] | Sequence[Any],
        *,
        test: Mapping[Any, Any] | Sequence[Any] | None = None,
        class_names: Sequence[str] = (),
        labels: Sequence[Label] = (),
        numbered: bool = False,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
    ) -> Federation:
        """Build a federation from data that is already divided by client.

        Args:
            clients: ``(x, y)`` of each client, by id or in a list; or a dictionary with ``x``, ``y`` and, if wanted,
                ``groups`` and ``time``, as in :meth:`from_arrays`.
            test: The test data of each client; if None, it is split off the clients' data.
            class_names: The names of the classes, in order; whole-number labels are then positions in it.
            labels: The label of each class, in order, where labels are numbered in another way than from 0.
            numbered: Whether whole-number labels are classes already, though none of these clients may have class 0.
            test_fraction: The share that is held out for testing if ``test`` is None.
            seed: Fixes the test split.
            name: The name of the data, for reports.
        """
        train_of, test_of = by_name(clients), by_name(test) if test is not None else None
        for client in test_of or {}:
            if client not in train_of:
                raise FedapmError(
                    f"client {client} has test data but no training data; {did_you_mean(client, train_of)}"
                )
        everything = [columns_of(data, client) for part in (train_of, test_of or {}) for client, data in part.items()]
        targets = [columns["y"] for columns in everything]
        code = LabelCode(tuple(labels)) if labels else find_label_code(targets, class_names, numbered=numbered)
        members = []
        for position, (client, data) in enumerate(train_of.items()):
            samples = samples_of(data, client, code)
            if test_of is not None:
                if client not in test_of:
                    raise FedapmError(f"client {client} has training data but no test data.")
                held_out = samples_of(test_of[client], client, code)
                members.append(ClientData(client, samples, same_kind(held_out, samples, client)))
                continue
            if len(samples):
                check_enough(client, len(samples))
            stream = numpy_generator(seed, "test split", position)
            members.append(ClientData(client, *split(client, samples, test_fraction, stream)))
        names = _names(class_names, code)
        return cls(members, name, class_names=names, labels=code.values if code is not None else ())

    @classmethod
    def from_datasets(
        cls,
        clients: Mapping[Any, Any] | Sequence[Any],
        *,
        test: Mapping[Any, Any] | Sequence[Any] | None = None,
        class_names: Sequence[str] = (),
        x: str | Sequence[str] | None = None,
        y: str | None = None,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
    ) -> Federation:
        """Build a federation from one dataset for each client; each is read once, into memory.

        Args:
            clients: The dataset of each client, by id or in a list: a torch ``Dataset``, ``Subset`` or ``DataLoader``
                that yields ``(x, y)`` or ``(x1, x2, …, y)``, or a dataset of the package ``datasets``, such as a
                partition of flwr-datasets. Also a partitioner or a federated dataset of flwr-datasets, whose
                partitions are the clients.
            test: The test datasets; if None, test data is split off.
            class_names: The names of the classes, in order.
            x: The input columns of datasets with named columns; all but the label if None.
            y: Their label column; ``label`` or ``labels`` if None.
            test_fraction: The share of each client's samples that is held out for testing, stratified by class.
            seed: Fixes the test split.
            name: The name of the data, for reports.
        """
        named, tests = (None if part is None else by_name(readers.partitions(part)) for part in (clients, test))
        assert named is not None
        first = next(iter(named.values()), None)
        class_names = class_names or readers.class_names(first, y)
        read = {client: readers.read_dataset(dataset, client, x, y) for client, dataset in named.items()}
        held_out = None
        if tests is not None:
            held_out = {client: readers.read_dataset(dataset, client, x, y) for client, dataset in tests.items()}
        return cls.from_clients(
            read, test=held_out, class_names=class_names, test_fraction=test_fraction, seed=seed, name=name
        )

    @classmethod
    def from_dataframe(
        cls,
        frame: Any,
        *,
        client: str = "client",
        y: str = "y",
        x: str | Sequence[str] | None = None,
        group: str | None = None,
        time: str | None = None,
        test: str | None = None,
        class_names: Sequence[str] = (),
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
    ) -> Federation:
        """Build a federation from a pandas DataFrame with one row a sample.

        Args:
            frame: The table.
            client: The column with the client's id.
            y: The column with the label.
            x: The input columns, numbers or lists of numbers; all other columns if None.
            group: The column with the recording of a row, which no split has on both sides.
            time: The column with the time of a row; splits hold out the latest.
            test: The column that says whether a row is for testing.
            class_names: As in :meth:`from_arrays`.
            test_fraction: As in :meth:`from_arrays`.
            seed: As in :meth:`from_arrays`.
            name: The name of the data, for reports.
        """
        columns = {"client": client, "y": y, "group": group, "time": time, "test": test}
        found = readers.read_frame(frame, {k: v for k, v in columns.items() if v is not None}, x)
        return cls.from_arrays(
            found["x"],
            found["y"],
            found["client"],
            groups=found.get("group"),
            time=found.get("time"),
            test=found.get("test"),
            class_names=class_names,
            test_fraction=test_fraction,
            seed=seed,
            name=name,
        )

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        client: str | None = None,
        *,
        clients: Any = None,
        x: str | Sequence[str] | None = None,
        y: str | None = None,
        class_names: Sequence[str] = (),
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
    ) -> Federation:
        """Build a federation from one dataset of all clients, read once into memory.

        Args:
            dataset: A dataset of the package ``datasets``, or a torch ``Dataset``, ``Subset`` or ``DataLoader``.
            client: The column with the client's id, where columns have names.
            clients: The client id of each sample, or a partitioner, in place of a column.
            x: The input columns, where columns have names; all others if None.
            y: The label column, where columns have names; ``label`` or ``labels`` if None.
            class_names: As in :meth:`from_arrays`.
            test_fraction: As in :meth:`from_arrays`.
            seed: As in :meth:`from_arrays`.
            name: The name of the data, for reports.
        """
        if (client is None) == (clients is None):
            raise FedapmError("say who has which sample: client='column' for named columns, or clients=ids.")
        ids = readers.column(dataset, client) if client is not None else clients
        inputs, targets = readers.read_dataset(
            dataset, "of all clients", x, y, also=() if client is None else (client,)
        )
        return cls.from_arrays(
            inputs,
            targets,
            ids,
            class_names=class_names or readers.class_names(dataset, y),
            test_fraction=test_fraction,
            seed=seed,
            name=name,
        )


def _all_finite(values: Tensor) -> bool:
    # a finite sum has finite terms and is much faster to check; a sum of large finite terms may still overflow
    return bool(torch.isfinite(values.sum(dtype=torch.float32))) or bool(torch.isfinite(values).all())


def _names(class_names: Sequence[str], code: LabelCode | None) -> Sequence[str]:
    return tuple(class_names) or (code.names if code is not None else ())
