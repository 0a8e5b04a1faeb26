"""Tables and datasets of other libraries, read once into arrays: pandas, torch, and Hugging Face's datasets.

None of these libraries is imported here: what an object can do says what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedapm.data.arrays import as_tensor
from fedapm.errors import FedapmError, did_you_mean

LABELS = ("label", "labels", "y", "target")
"""Columns that are taken for the label where none is named."""


def read_dataset(
    dataset: Any, client: str, x: str | Sequence[str] | None = None, y: str | None = None, also: Sequence[str] = ()
) -> tuple[Any, Any]:
    """A client's dataset as arrays (x, y).

    Args:
        dataset: A torch dataset or loader, or a dataset with named columns.
        client: Whose it is, for messages.
        x: The input columns, where columns have names.
        y: The label column, where columns have names.
        also: Further columns that are no inputs.
    """
    if _has_columns(dataset):
        return _read_columns(dataset, client, x, y, also)
    if x is not None or y is not None:
        raise FedapmError(f"client {client}: its dataset has no named columns, so x and y do not apply.")
    if isinstance(dataset, DataLoader):
        return _read_loader(dataset, client)
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise FedapmError(f"client {client}: its dataset has no length; give one that can be indexed, or a DataLoader.")
    return _stacked([dataset[k] for k in range(len(dataset))], client)


def partitions(clients: Any) -> Any:
    """The partitions of a partitioner or a federated dataset of flwr-datasets; anything else as it is."""
    if not hasattr(clients, "load_partition"):
        return clients
    ids, load = lazy_partitions(clients)
    return {name: load(k) for k, name in enumerate(ids)}


def lazy_partitions(clients: Any) -> tuple[Sequence[Any], Callable[[int], Any]]:
    """The ids of clients with a dataset each, and what gives a client's dataset by its position.

    Args:
        clients: A mapping or a list of datasets, or a partitioner or a federated dataset of flwr-datasets.
    """
    if not hasattr(clients, "load_partition"):
        named = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
        keys = list(named)
        return keys, lambda k: named[keys[k]]
    partitioners = getattr(clients, "partitioners", None)
    if isinstance(partitioners, Mapping):
        if len(partitioners) != 1:
            raise FedapmError(
                f"the federated dataset has {len(partitioners)} partitioners; load the partitions of one."
            )
        split, partitioner = next(iter(partitioners.items()))
        return [str(k) for k in range(partitioner.num_partitions)], lambda k: clients.load_partition(k, split)
    return [str(k) for k in range(clients.num_partitions)], lambda k: clients.load_partition(k)


def class_names(dataset: Any, y: str | None = None) -> tuple[str, ...]:
    """The names of the classes, where a dataset with named columns knows them."""
    if not _has_columns(dataset):
        return ()
    feature = (getattr(dataset, "features", None) or {}).get(label_column(dataset, y))
    names = getattr(feature, "names", None)
    return tuple(map(str, names)) if names else ()


def column(dataset: Any, name: str) -> np.ndarray[Any, Any]:
    """One column of a dataset with named columns."""
    if not _has_columns(dataset):
        raise FedapmError(f"the dataset has no named columns, so there is no {name!r}; give clients=ids instead.")
    if name not in dataset.column_names:
        raise FedapmError(f"the dataset has no column {name!r}; {did_you_mean(name, dataset.column_names)}")
    return np.asarray(list(dataset[name]))


def read_frame(frame: Any, columns: Mapping[str, str], x: str | Sequence[str] | None) -> dict[str, Any]:
    """The columns of a pandas DataFrame by what they are for.

    Args:
        frame: The table.
        columns: The column of each purpose: client, y, group, time, test.
        x: The input columns; all others if None.

    Returns:
        An array for each purpose, and the inputs as ``x``.
    """
    if not hasattr(frame, "columns") or not hasattr(frame, "iloc"):
        raise FedapmError(f"a DataFrame is needed here, not {type(frame).__name__}.")
    known = [str(name) for name in frame.columns]
    inputs = [x] if isinstance(x, str) else list(x) if x is not None else None
    for name in (*columns.values(), *(inputs or ())):
        if name not in known:
            raise FedapmError(f"the table has no column {name!r}; {did_you_mean(name, known)}")
    chosen = inputs if inputs is not None else [name for name in known if name not in columns.values()]
    if not chosen:
        raise FedapmError(f"the table has no input column: it holds only {', '.join(known)}.")
    found = {purpose: frame[name].to_numpy() for purpose, name in columns.items()}
    return found | {"x": matrix({name: frame[name].to_numpy() for name in chosen})}


def matrix(columns: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Columns of numbers side by side; one column of lists is taken as it is."""
    if len(columns) == 1:
        name, values = next(iter(columns.items()))
        if values.dtype.kind == "O" and len(values) and isinstance(values[0], (list, tuple, np.ndarray)):
            try:
                return np.stack([np.asarray(value, dtype=np.float32) for value in values])
            except (ValueError, TypeError):
                raise FedapmError(f"the rows of column {name!r} have different lengths, or are not numbers.") from None
    parts = []
    for name, values in columns.items():
        if values.dtype.kind not in "biuf":
            kind = "text" if values.dtype.kind in "OUST" else str(values.dtype)
            raise FedapmError(f"the input column {name!r} holds {kind}, not numbers; convert it or leave it out.")
        parts.append(values.astype(np.float32))
        if not np.isfinite(parts[-1]).all():
            row = int(np.flatnonzero(~np.isfinite(parts[-1]))[0])
            raise FedapmError(f"the input column {name!r} has a gap or an infinite value in row {row}; fill it first.")
    return np.stack(parts, axis=1)


def _has_columns(dataset: Any) -> bool:
    return isinstance(getattr(dataset, "column_names", None), (list, tuple)) and hasattr(dataset, "__getitem__")


def label_column(dataset: Any, y: str | None) -> str:
    """The name of the label column: the one that is said, or one that is called so."""
    if y is not None:
        if y not in dataset.column_names:
            raise FedapmError(f"the dataset has no column {y!r}; {did_you_mean(y, dataset.column_names)}")
        return y
    for name in LABELS:
        if name in dataset.column_names:
            return name
    raise FedapmError(f"which column is the label? Give y=, one of {', '.join(dataset.column_names)}.")


def _read_columns(
    dataset: Any, client: str, x: str | Sequence[str] | None, y: str | None, also: Sequence[str]
) -> tuple[Any, Any]:
    label = label_column(dataset, y)
    chosen = [x] if isinstance(x, str) else list(x or ())
    if not chosen:
        chosen = [name for name in dataset.column_names if name not in (label, *also)]
    for name in chosen:
        if name not in dataset.column_names:
            raise FedapmError(f"the dataset has no column {name!r}; {did_you_mean(name, dataset.column_names)}")
    if not len(dataset):
        raise FedapmError(f"client {client} has no training data; leave it out or give it some.")
    inputs = [_values(list(dataset[name]), name, client) for name in chosen]
    if len(inputs) > 1 and all(values.ndim == 1 for values in inputs):
        # columns of single numbers are the features of one input
        inputs = [np.stack(inputs, axis=1)]
    return tuple(inputs), np.asarray(list(dataset[label]))


def _values(values: list[Any], name: str, client: str) -> np.ndarray[Any, Any]:
    first = values[0]
    if isinstance(first, Tensor):
        values = [value.numpy() for value in values]
    try:
        # pictures of the package pillow are arrays to numpy
        array = np.stack([np.asarray(value) for value in values])
    except ValueError:
        raise FedapmError(f"client {client}: the rows of {name!r} have different shapes; bring them to one.") from None
    if array.dtype.kind not in "biuf":
        kind = type(first).__name__
        raise FedapmError(f"client {client}: the column {name!r} holds {kind}, not numbers; convert it, or give x=.")
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        # pictures: channels first, from 0 to 1
        array = (array[:, None] if array.ndim == 3 else array.transpose(0, 3, 1, 2)).astype(np.float32) / 255
    return array


def _read_loader(loader: DataLoader[Any], client: str) -> tuple[Any, Any]:
    from torch.utils.data import SequentialSampler

    if not isinstance(loader.sampler, SequentialSampler) and loader.batch_sampler is not None and loader.drop_last:
        raise FedapmError(
            f"client {client}: its DataLoader shuffles and drops the last batch, so other samples would be lost each "
            "time; give its dataset, or one without drop_last."
        )
    if not isinstance(loader.sampler, SequentialSampler) and hasattr(loader.dataset, "__getitem__"):
        # the order of a shuffling loader is another one each time; its dataset has a fixed one
        return read_dataset(loader.dataset, client)
    batches = [_pair(batch, client) for batch in loader]
    if not batches:
        raise FedapmError(f"client {client} has no training data; leave it out or give it some.")
    columns = [torch.cat([as_tensor(batch[k]) for batch in batches]) for k in range(len(batches[0]))]
    return tuple(columns[:-1]), columns[-1]


def _pair(row: Any, client: str) -> Sequence[Any]:
    if not isinstance(row, (tuple, list)) or len(row) < 2:
        raise FedapmError(f"client {client}: its dataset should yield (x, y) pairs.")
    return row


def _stacked(rows: Iterable[Any], client: str) -> tuple[Any, Any]:
    pairs = [_pair(row, client) for row in rows]
    if not pairs:
        raise FedapmError(f"client {client} has no training data; leave it out or give it some.")
    columns = [_column([row[k] for row in pairs], client) for k in range(len(pairs[0]))]
    return tuple(columns[:-1]), columns[-1]


def _column(values: list[Any], client: str) -> Any:
    try:
        if isinstance(values[0], Tensor):
            return torch.stack(values)
        return np.asarray(values) if isinstance(values[0], str) else as_tensor(values)
    except (RuntimeError, ValueError):
        raise FedapmError(f"client {client}: its samples have different shapes; pad or cut them to one.") from None
