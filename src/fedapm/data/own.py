"""Data files of the user's own: one file of all clients, or a folder with one file for each.

docs/how-to/own-data-cli.md describes the formats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedapm.core.extras import require
from fedapm.data.npz import first_line, read_npz
from fedapm.data.readers import read_frame
from fedapm.errors import FedapmError, did_you_mean

Array = np.ndarray[Any, Any]
SUFFIXES = (".npz", ".csv", ".parquet")
ARROW = (".arrow", ".feather")
SQLITE = (".sqlite", ".sqlite3", ".db")
PURPOSES = ("x", "y", "client", "test", "group", "time", "classes")
"""What an array or a column may be for."""
ENDS = 1 << 20
"""Bytes of the beginning and of the end of a large file that its fingerprint is made of."""
COLUMNS = ("y", "client", "test", "group", "time")
"""Those that a table has one column for."""
Columns = Mapping[str, str | Sequence[str]]
"""The name of the array or column for each purpose, where it has another name than the purpose."""


@dataclass(frozen=True)
class OwnData:
    """All samples of a file or a folder."""

    inputs: tuple[Array, ...]
    y: Array
    client: Array | None = None
    test: Array | None = None
    group: Array | None = None
    time: Array | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def at(self, positions: Array) -> OwnData:
        """The samples at some positions."""
        rows: dict[str, Any] = {
            name: None if (values := getattr(self, name)) is None else values[positions] for name in PER_SAMPLE
        }
        return replace(self, inputs=tuple(part[positions] for part in self.inputs), **rows)

    def positions_as_inputs(self) -> OwnData:
        """The same samples with their positions as inputs, for counting them."""
        return replace(self, inputs=(np.arange(len(self)),))


PER_SAMPLE = ("y", "client", "test", "group", "time")


def is_data_file(text: str) -> bool:
    """Whether a text names a data file or a folder of them rather than a data set."""
    return Path(text).suffix.lower() in (*SUFFIXES, *ARROW, *SQLITE) or (
        ("/" in text or "\\" in text) and Path(text).is_dir()
    )


def read_own(path: Path, columns: Columns | None = None, classes: Sequence[str] = ()) -> OwnData:
    """Read a data file, or a folder of one file a client.

    Args:
        path: An .npz, .csv or .parquet file with all samples and a column ``client``; or a folder of such files, each
            called by its client's id.
        columns: The names of arrays or columns, by purpose.
        classes: The names of the classes, in order; those in the file if not given.

    Raises:
        FedapmError: The file is missing or not as described; the message is one line.
    """
    check_purposes(columns or {})
    read = _read_folder if path.is_dir() else read_file
    data = read(path, columns or {})
    return replace(data, classes=tuple(classes)) if classes else data


def check_purposes(columns: Columns) -> None:
    """Refuse a column for a purpose that there is not."""
    for purpose in columns:
        if purpose not in PURPOSES:
            raise FedapmError(f"unknown setting 'data.columns.{purpose}'; {did_you_mean(purpose, PURPOSES)}")


def read_client(path: Path) -> tuple[Any, ...]:
    """One client's file.

    Returns:
        The pair (x, y), or ((x, y), (x_test, y_test)) where the file has test data of its own.
    """
    if path.suffix.lower() not in SUFFIXES[1:]:
        return read_npz(path)
    data = read_file(path, {})
    if data.test is None:
        return data.inputs, data.y
    train, test = (data.at(np.flatnonzero(data.test.astype(bool) == held_out)) for held_out in (False, True))
    return (train.inputs, train.y), (test.inputs, test.y)


def digest(path: Path) -> str:
    """The SHA-256 of a file, or of all data files of a folder and their names."""
    if path.is_dir():
        whole = hashlib.sha256()
        for part in data_files(path):
            whole.update(f"{part.name}\0{digest(part)}\0".encode())
        return whole.hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FedapmError(_missing(path) if not path.exists() else f"{path}: {error.strerror}.") from None


def fingerprint(path: Path) -> str:
    """A sum over a file's size, beginning and end, or over the names and sizes of a folder's files.

    It takes no longer for many clients' data, and does not see what changes in the middle of a file.
    """
    whole = hashlib.sha256()
    try:
        for file in data_files(path) if path.is_dir() else [path]:
            whole.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        if not path.is_dir():
            with path.open("rb") as stream:
                whole.update(stream.read(ENDS))
                stream.seek(max(path.stat().st_size - ENDS, 0))
                whole.update(stream.read(ENDS))
    except OSError as error:
        raise FedapmError(_missing(path) if not path.exists() else f"{path}: {error.strerror}.") from None
    return whole.hexdigest()


def data_files(folder: Path) -> list[Path]:
    """The files of a folder of one file a client, in the order of their names."""
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    if not files:
        raise FedapmError(f"{folder} holds no data file; give one file a client, called by its id: 7.npz or 7.csv.")
    return files


def _read_folder(folder: Path, columns: Columns) -> OwnData:
    parts: dict[str, OwnData] = {}
    for file in data_files(folder):
        if file.stem in parts:
            raise FedapmError(f"{folder} holds two files of client {file.stem!r}; leave one.")
        parts[file.stem] = read_file(file, columns)
    first_name, first = next(iter(parts.items()))
    shapes = [values.shape[1:] for values in first.inputs]
    for name, part in parts.items():
        if [values.shape[1:] for values in part.inputs] != shapes:
            raise FedapmError(
                f"{folder}: the samples of client {name} have the shape {part.inputs[0].shape[1:]}, those of client "
                f"{first_name} {first.inputs[0].shape[1:]}; bring them to one."
            )
        for column in ("test", "group", "time"):
            if (getattr(part, column) is None) != (getattr(first, column) is None):
                raise FedapmError(f"{folder}: some files have {column!r} and some do not; give it in all of them.")
    rows: dict[str, Any] = {
        column: np.concatenate([getattr(part, column) for part in parts.values()])
        for column in ("y", "test", "group", "time")
        if getattr(first, column) is not None
    }
    classes = next((part.classes for part in parts.values() if part.classes), ())
    if any(part.classes not in ((), classes) for part in parts.values()):
        raise FedapmError(f"{folder}: files name different classes; give the same in all of them.")
    inputs = tuple(np.concatenate(column) for column in zip(*(part.inputs for part in parts.values()), strict=True))
    return OwnData(inputs, client=np.repeat(list(parts), [len(p) for p in parts.values()]), classes=classes, **rows)


def read_file(path: Path, columns: Columns) -> OwnData:
    """The samples of one file.

    Args:
        path: The file.
        columns: The names of arrays or columns, by purpose.
    """
    suffix = path.suffix.lower()
    if not path.is_file():
        raise FedapmError(_missing(path))
    if suffix not in SUFFIXES:
        raise FedapmError(f"{path} ends in {suffix or 'nothing'}; a data file ends in {', '.join(SUFFIXES)}.")
    try:
        data = _from_npz(path, columns) if suffix == ".npz" else _from_table(path, columns)
    except FedapmError as error:
        message = str(error)
        raise FedapmError(message if str(path) in message else f"{path}: {message}") from None
    sizes = {name: len(values) for name in PER_SAMPLE if (values := getattr(data, name)) is not None}
    sizes |= {f"x{k or ''}": len(values) for k, values in enumerate(data.inputs)}
    if len(set(sizes.values())) != 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise FedapmError(f"{path}: the arrays have different lengths ({listed}); give one entry a sample.")
    if not len(data):
        raise FedapmError(f"{path} holds no sample.")
    return data


def _from_npz(path: Path, columns: Columns) -> OwnData:
    arrays = load_arrays(path)
    named = {purpose: columns.get(purpose, purpose) for purpose in PURPOSES}
    inputs = named["x"]
    if isinstance(inputs, str) and inputs not in arrays and "x" not in columns:
        # a network with several inputs
        inputs = [name for name in (f"x{k}" for k in range(1, 100)) if name in arrays] or inputs
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    for name in (*names, named["y"], *columns.values()):
        for single in [name] if isinstance(name, str) else name:
            if single not in arrays:
                raise FedapmError(f"it lacks the array {single!r}; it holds {', '.join(arrays) or 'nothing'}.")
    for name in (*names, str(named["y"])):
        if not arrays[name].shape:
            raise FedapmError(f"the array {name!r} is a single number; it should hold one row a sample.")
    optional = {name: arrays.get(str(named[name])) for name in ("client", "test", "group", "time")}
    classes = arrays.get(str(named["classes"]))
    data = OwnData(
        tuple(arrays[name] for name in names),
        arrays[str(named["y"])],
        classes=tuple(map(str, classes.tolist())) if classes is not None else (),
        **optional,
    )
    if "x_test" in arrays or "y_test" in arrays:
        return _with_test(data, arrays)
    return data


def _with_test(data: OwnData, arrays: Mapping[str, Array]) -> OwnData:
    """One client's file with test samples in arrays of their own."""
    if not {"x_test", "y_test"} <= arrays.keys():
        raise FedapmError("it has one of x_test and y_test; give both, or an array 'test' of true and false.")
    if data.client is not None or data.test is not None or len(data.inputs) > 1:
        raise FedapmError("x_test is for one client's file; mark test samples in an array 'test' of true and false.")
    if arrays["x_test"].shape[1:] != data.inputs[0].shape[1:]:
        raise FedapmError("the samples of x and x_test have different shapes.")
    x, y = (np.concatenate([arrays[name], arrays[f"{name}_test"]]) for name in ("x", "y"))
    return replace(data, inputs=(x,), y=y, test=np.arange(len(y)) >= len(data))


def _from_table(path: Path, columns: Columns) -> OwnData:
    import pandas as pd

    if path.suffix.lower() == ".parquet":
        require("pyarrow", "parquet", "Reading a .parquet file")
    try:
        frame = pd.read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except Exception as error:  # pandas and pyarrow raise many types for a damaged file
        raise FedapmError(f"it is not a table that pandas reads ({first_line(error)}).") from None
    found = read_frame(frame, _purposes(list(map(str, frame.columns)), columns), columns.get("x"))
    inputs = (found.pop("x"),)
    rows: dict[str, Any] = {name: _plain(values) for name, values in found.items()}
    return OwnData(inputs, **rows)


def _purposes(names: Sequence[str], columns: Columns) -> dict[str, str]:
    """The column of a table for each purpose but the inputs."""
    purposes = {p: str(columns.get(p, p)) for p in COLUMNS if p in columns or p in names}
    if "y" not in purposes:
        raise FedapmError(f"it has no column 'y' with the labels, but {', '.join(names)}; name it in data.columns.")
    return purposes


def purposes_of(path: Path, names: Sequence[str], columns: Columns) -> tuple[dict[str, str], list[str]]:
    """The column of a table for each purpose, and the columns of the inputs.

    Args:
        path: The file, for messages.
        names: The columns that there are.
        columns: The names of columns, by purpose, where they have other names than the purpose.
    """
    try:
        purposes = _purposes(names, columns)
    except FedapmError as error:
        raise FedapmError(f"{path}: {error}") from None
    said = columns.get("x")
    inputs = [said] if isinstance(said, str) else list(said or ())
    for name in (*purposes.values(), *inputs):
        if name not in names:
            raise FedapmError(f"{path} has no column {name!r}; {did_you_mean(name, names)}")
    inputs = inputs or [name for name in names if name not in purposes.values()]
    if not inputs:
        raise FedapmError(f"{path} has no input column: it holds only {', '.join(names)}.")
    return purposes, inputs


def read_labels(path: Path, columns: Columns) -> tuple[Array, int]:
    """The labels of one client's file without its inputs, and how many samples it has that are not for testing."""
    y, test = (str(columns.get(purpose, purpose)) for purpose in ("y", "test"))
    if path.suffix.lower() == ".npz":
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                found = {name: stored[name] for name in (y, test, "y_test") if name in stored.files}
        except Exception:  # whatever is wrong with it, reading all of it says so
            found = {}
    else:
        import pandas as pd

        read: Any = pd.read_csv if path.suffix.lower() == ".csv" else pd.read_parquet
        key = "usecols" if path.suffix.lower() == ".csv" else "columns"
        try:
            found = {y: _plain(read(path, **{key: [y]})[y].to_numpy())}
            if "test" in columns or test in _column_names(path):
                found[test] = read(path, **{key: [test]})[test].to_numpy()
        except Exception:  # whatever is wrong with it, reading all of it says so
            found = {}
    if y not in found or not found[y].shape:
        whole = read_file(path, columns)
        found = {y: whole.y, **({} if whole.test is None else {test: whole.test})}
    labels = np.concatenate([found[y], found["y_test"]]) if "y_test" in found else found[y]
    held_out = int(np.asarray(found[test]).astype(bool).sum()) if test in found else 0
    return labels, len(found[y]) - held_out


def _column_names(path: Path) -> list[str]:
    import pandas as pd

    if path.suffix.lower() == ".csv":
        return list(map(str, pd.read_csv(path, nrows=0).columns))
    return list(require("pyarrow.parquet", "parquet", "Reading a .parquet file").read_schema(path).names)


def _plain(values: Array) -> Array:
    """A column of a table as an array of plain numbers or text."""
    return values.astype(object) if values.dtype.kind not in "biufM" else values


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file; nothing in it is ever unpickled."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise FedapmError(f"{path} does not exist; give an .npz file with the arrays x and y.") from None
    except Exception as error:  # numpy, zipfile and zlib raise many types for a damaged file
        reason = "it holds Python objects" if "pickle" in str(error) else first_line(error)
        raise FedapmError(f"{path} is not an .npz file of plain arrays ({reason}).") from None


def _missing(path: Path) -> str:
    beside = [p.name for p in path.parent.glob("*") if p.suffix.lower() in SUFFIXES] if path.parent.is_dir() else []
    hint = f" {did_you_mean(path.name, beside)}" if beside else ""
    return f"{path} does not exist;{hint}" if hint else f"{path} does not exist."
