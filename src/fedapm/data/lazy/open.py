"""Which kind of source a lazy federation is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedapm.data.lazy.files import from_arrow, from_folder, from_parquet
from fedapm.data.lazy.source import ClientSource, from_dataset, from_datasets, from_function
from fedapm.data.lazy.sqlite import from_sqlite
from fedapm.data.own import ARROW, SQLITE, Columns
from fedapm.errors import FedapmError


def open_source(
    clients: Any,
    load: Callable[[Any], Any] | None,
    columns: Columns,
    *,
    table: str | None = None,
    sizes: Any = None,
    known: bool = False,
) -> ClientSource:
    """The source that is meant.

    Args:
        clients: Ids or their number, where there is a function; else a file or a folder, or datasets.
        load: The function that reads a client.
        columns: The names of arrays or columns, by purpose.
        table: The table of a database.
        sizes: How many samples each client has.
        known: Whether the classes are known.
    """
    if load is not None:
        return from_function(clients, load, sizes)
    if sizes is not None:
        raise FedapmError("sizes go with a function that loads clients; other sources know them.")
    if isinstance(clients, str | Path):
        return open_file(Path(clients), columns, table, known=known)
    if isinstance(clients, int):
        raise FedapmError(f"Federation.lazy({clients}) needs a function that loads a client, as in lazy(100, load).")
    for purpose in ("group", "time", "test"):
        if purpose in columns:
            raise FedapmError(f"{purpose} is for columns of files; datasets of other libraries have x and y.")
    x, y = columns.get("x"), columns.get("y")
    label = y if y is None or isinstance(y, str) else y[0]
    if "client" in columns:
        return from_dataset(clients, str(columns["client"]), x, label)
    return from_datasets(clients, x, label)


def open_file(path: Path, columns: Columns, table: str | None, *, known: bool) -> ClientSource:
    """A folder of files, or a file with a column of clients' ids."""
    suffix = path.suffix.lower()
    if path.is_dir():
        return from_folder(path, columns, known=known)
    if suffix in SQLITE:
        return from_sqlite(path, columns, table, known=known)
    if suffix in ARROW:
        return from_arrow(path, columns, known=known)
    if suffix == ".parquet":
        return from_parquet(path, columns, known=known)
    if not path.exists():
        raise FedapmError(f"{path} does not exist.")
    kinds = ", ".join((".parquet", *ARROW, *SQLITE))
    raise FedapmError(
        f"{path} ends in {suffix or 'nothing'}; clients are read one by one from a folder of one file a client, or "
        f"from {kinds}."
    )
