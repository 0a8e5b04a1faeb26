"""Where the clients of a lazy federation come from, and how what is read becomes a client's samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedapm.core.imports import described
from fedapm.core.random import numpy_generators
from fedapm.core.samples import Samples
from fedapm.data import readers
from fedapm.data.arrays import Label, LabelCode, find_label_code, is_quantity
from fedapm.data.clients import (
    ClientData,
    by_name,
    check_enough,
    columns_of,
    same_kind,
    samples_of,
    split_each,
    test_flags,
)
from fedapm.data.lazy.clients import Integers, LazyClients, Numbered
from fedapm.data.splitting import held_out_count
from fedapm.errors import FedapmError

PAIR = (tuple, Mapping)
"""What training and test data are where both are given."""


@dataclass(frozen=True)
class ClientSource:
    """Clients that can be read one by one."""

    ids: Sequence[str]
    read: Callable[[int], Any]
    """Reads a client, by its position: ``(x, y)``, ``((x, y), (x_test, y_test))``, arrays by name, or ClientData."""
    rows: Integers | None = None
    """How many samples each has, without those that are marked as test data; None where nothing says it cheaply."""
    labels: np.ndarray[Any, Any] | None = None
    """Every label that occurs; None where nothing says it cheaply, or where there are quantities."""
    class_names: tuple[str, ...] = ()


def from_function(ids: Sequence[Any] | int, load: Callable[[Any], Any], sizes: Any = None) -> ClientSource:
    """Clients that a function reads.

    Args:
        ids: The id of each client, which the function is called with; or how many there are, numbered from 0.
        load: The function.
        sizes: How many samples each has; None if that is not known.
    """
    if isinstance(ids, int):
        if ids < 1:
            raise FedapmError("a federation needs at least one client.")
        names: Sequence[str] = Numbered(ids)
        given: Sequence[Any] = range(ids)
    else:
        given = ids
        names = tuple(by_name(dict.fromkeys(ids)))
        if len(names) != len(given):
            twice = Counter(map(str, given)).most_common(1)[0][0]
            raise FedapmError(f"two clients are called {twice!r}; give each its own id.")
    rows = None if sizes is None else np.asarray(sizes)
    if rows is not None and (rows.shape != (len(names),) or rows.dtype.kind not in "iu" or (rows < 1).any()):
        raise FedapmError(f"sizes are whole numbers from 1 on, one for each of the {len(names)} clients.")
    return ClientSource(names, lambda k: load(given[k]), rows if rows is None else rows.astype(np.int64))


def from_datasets(datasets: Any, x: str | Sequence[str] | None, y: str | None) -> ClientSource:
    """Clients with a dataset each: a mapping or list of datasets, or the partitions of flwr-datasets."""
    ids, get = readers.lazy_partitions(datasets)
    names = tuple(by_name(dict.fromkeys(ids)))
    return ClientSource(
        names,
        lambda k: readers.read_dataset(get(k), names[k], x, y),
        class_names=readers.class_names(get(0), y),
    )


def from_dataset(dataset: Any, client: str, x: str | Sequence[str] | None, y: str | None) -> ClientSource:
    """Clients that a column of one dataset with named columns tells apart, such as one of Hugging Face's."""
    index = RowIndex.of(readers.column(dataset, client))
    if not hasattr(dataset, "select"):
        raise FedapmError("a dataset of all clients must have select(), as those of the package datasets do.")

    def read(position: int) -> Any:
        return readers.read_dataset(dataset.select(index.rows(position)), index.ids[position], x, y, also=(client,))

    names = readers.class_names(dataset, y)
    labels = None if names else _labels(np.asarray(list(dataset[readers.label_column(dataset, y)])))
    return ClientSource(index.ids, read, index.counts, labels, names)


@dataclass(frozen=True)
class RowIndex:
    """Which rows of a table each client has."""

    ids: tuple[str, ...]
    starts: Integers
    counts: Integers
    order: Integers | None
    """The rows, client by client; None where they are in this order already."""

    @classmethod
    def of(cls, column: np.ndarray[Any, Any]) -> RowIndex:
        """From the client's id of each row; clients are in the order of their ids."""
        if column.dtype.kind == "f" and np.isnan(column).any():
            raise FedapmError(f"{int(np.isnan(column).sum())} client ids are missing (NaN); give every sample an id.")
        try:
            values, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
        except TypeError:
            raise FedapmError("the client ids mix types or have gaps (None); give every sample an id.") from None
        in_order = bool((np.diff(inverse) >= 0).all())
        order = None if in_order else np.argsort(inverse, kind="stable")
        ids = tuple(map(str, values.tolist()))
        return cls(ids, np.cumsum(counts) - counts, counts.astype(np.int64), order)

    def rows(self, position: int) -> range | list[int]:
        """The rows of a client, in increasing order."""
        start = int(self.starts[position])
        stop = start + int(self.counts[position])
        return range(start, stop) if self.order is None else self.order[start:stop].tolist()


def lazy_clients(
    source: ClientSource,
    *,
    classes: int | None,
    class_names: Sequence[str],
    labels: Sequence[Label],
    test_fraction: float,
    seed: int,
    memory: int,
) -> tuple[LazyClients, LabelCode | None, tuple[str, ...]]:
    """Clients that are loaded from a source when they are needed.

    Args:
        source: The source.
        classes: How many classes there are, where labels are numbered from 0.
        class_names: Their names, in order.
        labels: The label of each class, in order, where labels are numbered in another way.
        test_fraction: The share of a client's samples that is held out for testing where it has no test data.
        seed: Fixes the test split.
        memory: How many bytes of clients' data are kept.

    Returns:
        The clients, how labels become classes, and the names of the classes.
    """
    if not len(source.ids):
        raise FedapmError("a federation needs at least one client.")
    names = tuple(class_names) or source.class_names
    first = _read(source, 0)
    target = None if isinstance(first, ClientData) else columns_of(_training(first), source.ids[0])["y"]
    quantities = not first.train.classified if isinstance(first, ClientData) else is_quantity(target)
    code = None
    if not quantities and not isinstance(first, ClientData):
        known = LabelCode(tuple(labels)) if labels else None
        seen = [target] if source.labels is None else [source.labels]
        code = known or find_label_code(seen, names, numbered=source.labels is None and not names)
    count = 0 if quantities else _class_count(source, code, names, classes)

    def load(positions: Sequence[int]) -> list[ClientData]:
        raw = [_read(source, position) for position in positions]
        made, read = _clients(raw, source.ids, positions, code, test_fraction, seed)
        for client, count, position in zip(made, read, positions, strict=True):
            if source.rows is not None and count != source.rows[position]:
                raise FedapmError(
                    f"client {client.id} has {count} samples, but {source.rows[position]} were announced; its data has "
                    "changed, or sizes are not right."
                )
        return made

    own_test = isinstance(first, ClientData) or _test_data(first) is not None
    sizes = source.rows
    if sizes is not None and not own_test:
        together = samples_of(_training(first), source.ids[0], code).belong_together
        # how much of a recording is held out is known when it is read
        sizes = None if together else sizes - held_out_count(sizes, test_fraction)
    return LazyClients(source.ids, load, classes=count, sizes=sizes, memory=memory), code, names


def _class_count(source: ClientSource, code: LabelCode | None, names: Sequence[str], classes: int | None) -> int:
    if code is not None:
        return len(code.values)
    if names:
        return len(names)
    if classes is not None:
        return classes
    if source.labels is not None and len(source.labels):
        return int(source.labels.max()) + 1
    raise FedapmError(
        "say how many classes there are, because not all clients are read to find out: classes=10, or class_names."
    )


def _read(source: ClientSource, position: int) -> Any:
    """What a source gives for a client; any failure is one line that names the client."""
    client = source.ids[position]
    try:
        return source.read(position)
    except FedapmError as error:
        message = str(error)
        raise FedapmError(message if f"client {client}" in message else f"client {client}: {message}") from None
    except Exception as error:
        raise FedapmError(f"client {client} cannot be loaded: {described(error)}") from error


def _clients(
    raw: Sequence[Any],
    ids: Sequence[str],
    positions: Sequence[int],
    code: LabelCode | None,
    test_fraction: float,
    seed: int,
) -> tuple[list[ClientData], list[int]]:
    """Some clients' data, and how many samples each has that are not test data from the start."""
    names = [ids[position] for position in positions]
    found = [_client(one, name, code) for one, name in zip(raw, names, strict=True)]
    whole = [k for k, own in enumerate(found) if isinstance(own, Samples)]
    samples = [own for own in found if isinstance(own, Samples)]
    streams = numpy_generators(seed, "test split", [positions[k] for k in whole])
    parts = dict(zip(whole, split_each([names[k] for k in whole], samples, test_fraction, streams), strict=True))
    made = [ClientData(names[k], *parts[k]) if isinstance(own, Samples) else own for k, own in enumerate(found)]
    return made, [len(own) if isinstance(own, Samples) else len(own.train) for own in found]


def _client(raw: Any, client: str, code: LabelCode | None) -> ClientData | Samples:
    """A client's data, or all of its samples where its test data is still to be split off."""
    if isinstance(raw, ClientData):
        return replace(raw, id=client)
    samples = samples_of(_training(raw), client, code)
    test = _test_data(raw)
    if test is None:
        if len(samples):
            check_enough(client, len(samples))
        return samples
    if isinstance(raw, Mapping):
        try:
            held_out = torch.as_tensor(test_flags(test, len(samples)))
        except FedapmError as error:
            raise FedapmError(f"client {client}: {error}") from None
        return ClientData(client, samples[~held_out], samples[held_out])
    held = samples_of(test, client, code)
    return ClientData(client, samples, same_kind(held, samples, client))


def _training(raw: Any) -> Any:
    """The samples to train on, or to split, of what was read."""
    if _has_test_pair(raw):
        return raw[0]
    return {k: v for k, v in raw.items() if k != "test"} if isinstance(raw, Mapping) else raw


def _test_data(raw: Any) -> Any:
    """The test samples of what was read, or which samples are for testing; None where nothing says it."""
    if _has_test_pair(raw):
        return raw[1]
    return raw.get("test") if isinstance(raw, Mapping) else None


def _has_test_pair(raw: Any) -> bool:
    return isinstance(raw, tuple) and len(raw) == 2 and all(isinstance(part, PAIR) for part in raw)


def _labels(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    return None if column.dtype.kind == "f" else np.unique(column)
