"""Files that clients are read from one by one: a folder of one file a client, Parquet and Arrow tables."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedapm.core.extras import require
from fedapm.data import readers
from fedapm.data.lazy.clients import Integers
from fedapm.data.lazy.source import ClientSource
from fedapm.data.npz import first_line
from fedapm.data.own import Columns, data_files, purposes_of, read_file, read_labels
from fedapm.errors import FedapmError

logger = logging.getLogger(__name__)
GROUPS = 4
"""Decoded row groups of a Parquet file that are kept: clients that are read one after the other may share one."""
MANY = 100_000
"""Rows from which on a row group is large."""


def from_folder(folder: Path, columns: Columns, *, known: bool) -> ClientSource:
    """Clients with a file each, called by their ids.

    Args:
        folder: The folder.
        columns: The names of arrays or columns, by purpose.
        known: Whether the classes are known; if not, the labels of all files are read once.
    """
    files: dict[str, Path] = {}
    for file in data_files(folder):
        if file.stem in files:
            raise FedapmError(f"{folder} holds two files of client {file.stem!r}; leave one.")
        files[file.stem] = file
    ids = tuple(sorted(files))

    def read(position: int) -> dict[str, Any]:
        data = read_file(files[ids[position]], columns)
        named = {"x": data.inputs, "y": data.y, "groups": data.group, "time": data.time, "test": data.test}
        return {name: values for name, values in named.items() if values is not None}

    first = read_file(files[ids[0]], columns)
    if known or first.classes or first.y.dtype.kind == "f":
        return ClientSource(ids, read, class_names=first.classes)
    found = [read_labels(files[client], columns) for client in ids]
    labels = np.unique(np.concatenate([values for values, _ in found]))
    return ClientSource(ids, read, np.array([rows for _, rows in found], np.int64), labels)


def from_parquet(path: Path, columns: Columns, *, known: bool) -> ClientSource:
    """Clients that a column of a Parquet file tells apart; each client's rows lie together."""
    parquet = require("pyarrow.parquet", "parquet", "Reading a .parquet file")
    with _readable(path):
        file = parquet.ParquetFile(path, memory_map=True)
    ends = np.cumsum([file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)])
    groups: OrderedDict[int, Any] = OrderedDict()

    def group(number: int, names: Sequence[str]) -> Any:
        if number not in groups:
            groups[number] = file.read_row_group(number, columns=list(names), use_threads=False)
        groups.move_to_end(number)
        while len(groups) > GROUPS:
            groups.popitem(last=False)
        return groups[number]

    def rows(start: int, stop: int, names: Sequence[str]) -> Any:
        first, last = (int(np.searchsorted(ends, row, side="right")) for row in (start, stop - 1))
        begins = [int(ends[k - 1]) if k else 0 for k in range(first, last + 1)]
        parts = [
            group(k, names).slice(max(start - begin, 0), min(stop, int(ends[k])) - max(start, begin))
            for k, begin in zip(range(first, last + 1), begins, strict=True)
        ]
        return require("pyarrow", "parquet", "Reading a .parquet file").concat_tables(parts)

    source = _from_columns(path, file.schema_arrow.names, lambda names: file.read(names), rows, columns, known)
    largest = int(np.diff(ends, prepend=0).max())
    if source.rows is not None and largest > MANY and largest > GROUPS * MANY * int(source.rows.max()) // 1000:
        logger.warning(
            "%s has row groups of %d rows, all of which are decoded to read one client; write it with a smaller "
            "row_group_size, such as 10000.",
            path,
            largest,
        )
    return source


def from_arrow(path: Path, columns: Columns, *, known: bool) -> ClientSource:
    """Clients that a column of an Arrow file tells apart, which is mapped into memory."""
    arrow = require("pyarrow", "parquet", "Reading an Arrow file")
    ipc = require("pyarrow.ipc", "parquet", "Reading an Arrow file")
    with _readable(path):
        table = ipc.open_file(arrow.memory_map(str(path))).read_all()

    def rows(start: int, stop: int, names: Sequence[str]) -> Any:
        return table.select(list(names)).slice(start, stop - start)

    return _from_columns(path, table.column_names, lambda names: table.select(names), rows, columns, known)


def _from_columns(
    path: Path,
    names: Sequence[str],
    whole: Callable[[list[str]], Any],
    rows: Callable[[int, int, Sequence[str]], Any],
    columns: Columns,
    known: bool,
) -> ClientSource:
    """Clients of a table that is read in columns; those of ids, labels and marks are read whole."""
    purposes, inputs = purposes_of(path, names, columns)
    if "client" not in purposes:
        raise FedapmError(f"{path} does not say who has which sample: it has no column 'client'; name it (client).")
    ids, starts, counts, codes = _clients(path, whole([purposes["client"]]).column(0))
    count = counts
    if "test" in purposes:
        marks = whole([purposes["test"]]).column(0).to_numpy().astype(bool)
        count = np.bincount(codes[~marks], minlength=len(ids)).astype(np.int64)
    wanted = [*inputs, *(name for purpose, name in purposes.items() if purpose != "client")]
    labels = None
    if not known:
        column = whole([purposes["y"]]).column(0)
        values = column.unique().to_numpy(zero_copy_only=False)
        labels = None if values.dtype.kind == "f" else np.sort(values)

    def read(position: int) -> dict[str, Any]:
        start = int(starts[position])
        table = rows(start, start + int(counts[position]), wanted)
        arrays = {name: table.column(name).to_numpy() for name in wanted}
        return as_named(arrays, purposes, inputs)

    return ClientSource(ids, read, count, labels)


def as_named(arrays: dict[str, Any], purposes: dict[str, str], inputs: Sequence[str]) -> dict[str, Any]:
    """Columns of a client as the arrays of a client: inputs side by side, the others by what they are for."""
    named: dict[str, Any] = {
        {"group": "groups"}.get(purpose, purpose): arrays[name]
        for purpose, name in purposes.items()
        if purpose != "client"
    }
    return named | {"x": readers.matrix({name: arrays[name] for name in inputs})}


def _clients(path: Path, column: Any) -> tuple[tuple[str, ...], Integers, Integers, Integers]:
    """The ids in order, where each client's rows begin, how many they are, and the client of each row."""
    if column.null_count:
        raise FedapmError(f"{path}: {column.null_count} client ids are missing; give every sample an id.")
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[encoded.indices.to_numpy()]
    begins = np.flatnonzero(np.diff(codes, prepend=-1))
    if len(begins) != len(values):
        raise FedapmError(
            f"{path}: the rows of a client do not lie together, so that one client could not be read without the "
            "others; sort the table by client and write it again."
        )
    starts = np.empty(len(values), np.int64)
    starts[codes[begins]] = begins
    counts = np.bincount(codes, minlength=len(values)).astype(np.int64)
    return tuple(map(str, values[order].tolist())), starts, counts, codes


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What cannot be opened is said in one line."""
    if not path.is_file():
        raise FedapmError(f"{path} does not exist.")
    try:
        yield
    except Exception as error:  # pyarrow raises many types for a damaged file
        raise FedapmError(f"{path} is not a table that can be read ({first_line(error).rstrip('.')}).") from None
