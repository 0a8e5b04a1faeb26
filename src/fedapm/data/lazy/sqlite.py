"""A SQLite database whose clients are read one by one, by an index on the column that tells them apart."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fedapm.data.lazy.clients import Numbered
from fedapm.data.lazy.files import as_named
from fedapm.data.lazy.source import ClientSource
from fedapm.data.own import Columns, purposes_of
from fedapm.errors import FedapmError, did_you_mean


class Database:
    """A database that is only read, with a connection for each process."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise FedapmError(f"{path} does not exist.")
        self.path = path
        self._open: tuple[int, sqlite3.Connection] | None = None

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a query gives."""
        try:
            return self._connection().execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise FedapmError(f"{self.path} cannot be read ({str(error).rstrip('.')}).") from None

    def _connection(self) -> sqlite3.Connection:
        # a connection must not be used by a process that was forked
        if self._open is None or self._open[0] != os.getpid():
            address = f"file:{quote(str(self.path.resolve()))}?mode=ro"
            connection = sqlite3.connect(address, uri=True, check_same_thread=False)
            self._open = os.getpid(), connection
            weakref.finalize(self, _close, connection, os.getpid())
        return self._open[1]


def from_sqlite(path: Path, columns: Columns, table: str | None, *, known: bool) -> ClientSource:
    """Clients that a column of a table tells apart.

    Args:
        path: The database.
        columns: The names of columns, by purpose.
        table: The table; the only one if None.
        known: Whether the classes are known; if not, they are looked for in the table.
    """
    database = Database(path)
    table = _table(database, table)
    names = [str(row[1]) for row in database.rows(f"PRAGMA table_info({_quoted(table)})")]
    purposes, inputs = purposes_of(path, names, columns)
    if "client" not in purposes:
        raise FedapmError(f"{path} does not say who has which sample: it has no column 'client'; name it (client).")
    _check_index(database, table, purposes["client"])
    name, client = _quoted(table), _quoted(purposes["client"])
    count = f"SUM(NOT {_quoted(purposes['test'])})" if "test" in purposes else "COUNT(*)"
    found = database.rows(f"SELECT {client}, {count} FROM {name} GROUP BY {client} ORDER BY {client}")
    if found and found[0][0] is None:
        raise FedapmError(f"{path}: some client ids are missing (NULL); give every sample an id.")
    counts = np.array([row[1] for row in found], np.int64)
    keys: Sequence[Any] = [row[0] for row in found]
    del found
    numbered = all(key == k for k, key in enumerate(keys))
    keys = range(len(keys)) if numbered else keys
    labels = None
    if not known:
        target = _quoted(purposes["y"])
        kind = database.rows(f"SELECT typeof({target}) FROM {name} LIMIT 1")
        if kind and kind[0][0] != "real":
            labels = np.sort(np.array([row[0] for row in database.rows(f"SELECT DISTINCT {target} FROM {name}")]))
    wanted = [*inputs, *(column for purpose, column in purposes.items() if purpose != "client")]
    query = f"SELECT {', '.join(map(_quoted, wanted))} FROM {name} WHERE {client} = ?"

    def read(position: int) -> dict[str, Any]:
        rows = database.rows(query, keys[position])
        if not rows:
            raise FedapmError(f"{path} has no row of this client any more.")
        arrays = {column: _array(values) for column, values in zip(wanted, zip(*rows, strict=True), strict=True)}
        return as_named(arrays, purposes, inputs)

    return ClientSource(Numbered(len(keys)) if numbered else tuple(map(str, keys)), read, counts, labels)


def _table(database: Database, table: str | None) -> str:
    known = [
        str(row[0])
        for row in database.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    ]
    if table is not None:
        if table not in known:
            hint = did_you_mean(table, known) if known else "it has none."
            raise FedapmError(f"{database.path} has no table {table!r}; {hint}")
        return table
    if len(known) != 1:
        raise FedapmError(f"{database.path} has {len(known)} tables ({', '.join(known[:8])}); say which one (table).")
    return known[0]


def _check_index(database: Database, table: str, client: str) -> None:
    """Refuse a table in which looking for one client's rows would read all rows."""
    for _, index, *_ in database.rows(f"PRAGMA index_list({_quoted(table)})"):
        first = database.rows(f"PRAGMA index_info({_quoted(str(index))})")[0]
        if first[2] == client:
            return
    raise FedapmError(
        f"{database.path} has no index on {client!r}, so that reading one client would read all rows; make one: "
        f"CREATE INDEX by_client ON {_quoted(table)} ({_quoted(client)})."
    )


def _array(values: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """A column of one client; bytes are single precision numbers."""
    if isinstance(values[0], bytes):
        try:
            return np.array([np.frombuffer(value, "<f4") for value in values] + [None], object)[:-1]
        except ValueError:
            raise FedapmError("a column of bytes should hold single precision numbers, four bytes each.") from None
    array = np.array(values, object if isinstance(values[0], str) else None)
    return array.astype(np.float64) if array.dtype.kind == "O" and None in values else array


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _close(connection: sqlite3.Connection, process: int) -> None:
    if os.getpid() == process:
        connection.close()
