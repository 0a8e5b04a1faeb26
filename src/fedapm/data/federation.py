"""Federation: clients, each with its own training and test data, and the ways to make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from fedapm.core.random import numpy_generator
from fedapm.data import readers
from fedapm.data.arrays import Arrays, Label, LabelCode, as_samples, find_label_code
from fedapm.data.clients import (
    ClientData,
    by_name,
    check_enough,
    columns_of,
    divided,
    same_kind,
    samples_of,
    split,
    test_flags,
)
from fedapm.data.lazy.cache import MEMORY
from fedapm.data.lazy.open import open_source
from fedapm.data.lazy.source import lazy_clients
from fedapm.data.partition import Partitioner
from fedapm.data.partition import by_id as partition_by_id
from fedapm.data.population import Population
from fedapm.errors import FedapmError, did_you_mean


class Federation(Population):
    """Clients and their data, the same for every method and seed.

    Build one with :meth:`from_arrays`, :meth:`from_clients`, :meth:`from_datasets` or :meth:`from_parts`, or with
    :meth:`lazy` where there are more clients than fit into memory.

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

    @classmethod
    def lazy(
        cls,
        clients: Any,
        load: Callable[[Any], Any] | None = None,
        *,
        client: str | None = None,
        x: str | Sequence[str] | None = None,
        y: str | None = None,
        group: str | None = None,
        time: str | None = None,
        test: str | None = None,
        table: str | None = None,
        sizes: Any = None,
        classes: int | None = None,
        class_names: Sequence[str] = (),
        labels: Sequence[Label] = (),
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "own data",
        memory: int = MEMORY,
    ) -> Self:
        """Build a federation whose clients are read when they take part, so that any number of them will do.

        A run reads the clients of a round in a thread while the round before is under way. The results are those of
        the same data in memory.

        Args:
            clients: The ids of the clients, or their number, with ``load``. Without it, where they are read from: a
                folder of one file a client, as .npz, .csv or .parquet; a .parquet, .arrow or SQLite file with a column
                of clients' ids; a dataset of the package ``datasets`` with such a column; a dataset for each client,
                by id or in a list; a partitioner or a federated dataset of flwr-datasets.
            load: A function of a client's id that returns its data: ``(x, y)``; ``((x, y), (x_test, y_test))``; or a
                dictionary with ``x``, ``y`` and, if wanted, ``groups``, ``time`` and ``test``, as in
                :meth:`from_arrays`. For the same id it returns the same data, and it draws no random numbers but from
                generators of its own.
            client: The column with the client's id: ``client`` in files; with a dataset it must be named.
            x: The input columns; all others if None.
            y: The label column: ``y`` in files.
            group: The column with the recording of a row, in files.
            time: The column with the time of a row, in files.
            test: The column that says whether a row is for testing, in files.
            table: The table of a SQLite file; the only one if None.
            sizes: With ``load``: how many samples each client has, without test data of its own. Needed for weights by
                samples.
            classes: The number of classes, numbered from 0, where the source does not say it.
            class_names: The names of the classes, in order. With them no labels are looked at in advance.
            labels: The label of each class, in order, where labels are numbered in another way than from 0.
            test_fraction: The share of each client's samples that is held out for testing where it has no test data.
            seed: Fixes the test split.
            name: The name of the data, for reports.
            memory: How many bytes of clients' data are kept in memory.

        Raises:
            FedapmError: The source cannot be read, or does not say what it must; later, when a client cannot be
                loaded or its data is of another form than the first client's.
        """
        columns = {"client": client, "x": x, "y": y, "group": group, "time": time, "test": test}
        named = {purpose: column for purpose, column in columns.items() if column is not None}
        known = bool(class_names or labels or classes)
        source = open_source(clients, load, named, table=table, sizes=sizes, known=known)
        members, code, names = lazy_clients(
            source,
            classes=classes,
            class_names=class_names,
            labels=labels,
            test_fraction=test_fraction,
            seed=seed,
            memory=memory,
        )
        return cls(members, name, class_names=_names(names, code), labels=code.values if code is not None else ())

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
    ) -> Self:
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
    ) -> Self:
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
    ) -> Self:
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
    ) -> Self:
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
    ) -> Self:
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
    ) -> Self:
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


def _names(class_names: Sequence[str], code: LabelCode | None) -> Sequence[str]:
    return tuple(class_names) or (code.names if code is not None else ())
