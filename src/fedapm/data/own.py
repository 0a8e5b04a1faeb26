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
from fedapm.core.random import numpy_generator
from fedapm.data.arrays import LabelCode, find_label_code
from fedapm.data.dataset import sample_order
from fedapm.data.federation import Federation
from fedapm.data.npz import first_line, read_npz
from fedapm.data.partition import Natural, PartitionRule
from fedapm.data.readers import read_frame
from fedapm.errors import FedapmError, did_you_mean

Array = np.ndarray[Any, Any]
SUFFIXES = (".npz", ".csv", ".parquet")
PURPOSES = ("x", "y", "client", "test", "group", "time", "classes")
"""What an array or a column may be for."""
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

    def federation(
        self, rule: PartitionRule, *, test_fraction: float, seed: int, name: str, samples: int | None = None
    ) -> Federation:
        """Distribute the samples over clients.

        Args:
            rule: Which client gets which sample.
            test_fraction: The share of each client's samples that is held out, where the data says nothing of it.
            seed: Fixes the partition and the test split.
            name: The name of the data, for reports.
            samples: At most so many samples are used; all if None.
        """
        if samples is not None and samples < len(self):
            return self.at(np.sort(sample_order(name, len(self))[:samples])).federation(
                rule, test_fraction=test_fraction, seed=seed, name=name
            )
        code = find_label_code([self.y], self.classes)
        targets = self.y if code is None else code.encode(self.y)
        if isinstance(rule, Natural):
            if self.client is None:
                raise FedapmError(
                    f"{name} does not say who has which sample: it has no 'client'; name it in data.columns, or "
                    'simulate clients, as in data.partition = "dirichlet".'
                )
            parts = rule(self.client)
        else:
            drawn = rule(targets, numpy_generator(seed, "partition"))
            parts = {str(k): positions for k, positions in enumerate(drawn)}
        return Federation.from_parts(
            self.inputs,
            targets,
            parts,
            groups=self.group,
            time=self.time,
            test=self.test,
            test_fraction=test_fraction,
            seed=seed,
            name=name,
            class_names=self.classes or (code.names if code is not None else ()),
            labels=code.values if isinstance(code, LabelCode) else (),
        )


PER_SAMPLE = ("y", "client", "test", "group", "time")


def is_data_file(text: str) -> bool:
    """Whether a text names a data file or a folder of them rather than a data set."""
    return Path(text).suffix.lower() in SUFFIXES or (("/" in text or "\\" in text) and Path(text).is_dir())


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
    for purpose in columns or {}:
        if purpose not in PURPOSES:
            raise FedapmError(f"unknown setting 'data.columns.{purpose}'; {did_you_mean(purpose, PURPOSES)}")
    read = _read_folder if path.is_dir() else _read_file
    data = read(path, columns or {})
    return replace(data, classes=tuple(classes)) if classes else data


def read_client(path: Path) -> tuple[Any, ...]:
    """One client's file.

    Returns:
        The pair (x, y), or ((x, y), (x_test, y_test)) where the file has test data of its own.
    """
    if path.suffix.lower() not in SUFFIXES[1:]:
        return read_npz(path)
    data = _read_file(path, {})
    if data.test is None:
        return data.inputs, data.y
    train, test = (data.at(np.flatnonzero(data.test.astype(bool) == held_out)) for held_out in (False, True))
    return (train.inputs, train.y), (test.inputs, test.y)


def digest(path: Path) -> str:
    """The SHA-256 of a file, or of all data files of a folder and their names."""
    if path.is_dir():
        whole = hashlib.sha256()
        for part in _files(path):
            whole.update(f"{part.name}\0{digest(part)}\0".encode())
        return whole.hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FedapmError(_missing(path) if not path.exists() else f"{path}: {error.strerror}.") from None


def _files(folder: Path) -> list[Path]:
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    if not files:
        raise FedapmError(f"{folder} holds no data file; give one file a client, called by its id: 7.npz or 7.csv.")
    return files


def _read_folder(folder: Path, columns: Columns) -> OwnData:
    parts: dict[str, OwnData] = {}
    for file in _files(folder):
        if file.stem in parts:
            raise FedapmError(f"{folder} holds two files of client {file.stem!r}; leave one.")
        parts[file.stem] = _read_file(file, columns)
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


def _read_file(path: Path, columns: Columns) -> OwnData:
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
    purposes = [p for p in ("y", "client", "test", "group", "time") if p in columns or p in frame.columns]
    if "y" not in purposes:
        listed = ", ".join(map(str, frame.columns))
        raise FedapmError(f"it has no column 'y' with the labels, but {listed}; name it in data.columns.")
    found = read_frame(frame, {p: str(columns.get(p, p)) for p in purposes}, columns.get("x"))
    inputs = (found.pop("x"),)
    rows: dict[str, Any] = {name: _plain(values) for name, values in found.items()}
    return OwnData(inputs, **rows)


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
