"""What the sensor data sets share: recordings read from tables, and windows cut from them or kept in one file."""

from __future__ import annotations

import csv
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedapm.data.dataset import Pool
from fedapm.errors import FedapmError

if TYPE_CHECKING:
    import pandas as pd

LENGTH = 128
"""Samples in a window."""
AXES = 3
SENSORS = ("acc", "gyro")
Array = np.ndarray[Any, Any]

# windows are kept in single precision, so a larger number would become infinite
LARGEST = float(np.finfo(np.float32).max)


def cut(signal: Array, length: int = LENGTH) -> Array:
    """The windows (n, axes, length) of a signal (axes, samples), one after the other; an incomplete one is dropped."""
    axes, samples = signal.shape
    count = samples // length
    return signal[:, : count * length].reshape(axes, count, length).transpose(1, 0, 2)


def standardised(windows: Array) -> Array:
    """Each window with mean 0 and standard deviation 1 on each axis; an axis that does not move becomes zeros."""
    deviation = windows - windows.mean(-1, keepdims=True)
    spread = windows.std(-1, keepdims=True)
    # the mean of equal numbers can differ from them by rounding, so the spread alone does not tell what moves
    moves = (windows.max(-1, keepdims=True) > windows.min(-1, keepdims=True)) & (spread > 0)
    result: Array = np.where(moves, deviation / np.where(moves, spread, 1.0), 0.0)
    return result


def scaled(windows: Array, mean: Sequence[float], std: Sequence[float]) -> Array:
    """Windows in units of a data set's own mean and standard deviation of each axis."""
    result: Array = (windows - np.asarray(mean)[:, None]) / np.asarray(std)[:, None]
    return result


@dataclass(frozen=True)
class Windows:
    """Windows of two sensors, what was done in each and who did it."""

    acc: Array
    gyro: Array
    targets: Array
    owners: Array

    @classmethod
    def joined(cls, parts: Sequence[Windows], where: Path) -> Windows:
        """The windows of several recordings in order; one line where there is none."""
        filled = [part for part in parts if len(part.targets)]
        if not filled:
            raise FedapmError(f"{where} holds no recording that is long enough for a window of {LENGTH} samples.")
        columns = ([getattr(part, name) for part in filled] for name in ("acc", "gyro", "targets", "owners"))
        return cls(*map(np.concatenate, columns))

    @classmethod
    def of(cls, acc: Array, gyro: Array, target: int, owner: str) -> Windows:
        """All windows of one recording of one person."""
        return cls(acc, gyro, np.full(len(acc), target), np.full(len(acc), owner))

    def pool(self, classes: Sequence[str]) -> Pool:
        """The windows as samples: both sensors, then the length of each."""
        lengths = torch.full((len(self.targets),), LENGTH, dtype=torch.int64)
        values = (torch.from_numpy(np.ascontiguousarray(part, np.float32)) for part in (self.acc, self.gyro))
        return Pool(
            torch.from_numpy(self.targets.astype(np.int64)),
            tuple(classes),
            SENSORS,
            self.owners,
            inputs=(*values, lengths, lengths.clone()),
        )


def table(path: Path, columns: Sequence[str], *, header: bool, text: Sequence[str] = ()) -> pd.DataFrame:
    """The columns of a CSV file, all of them numbers but for the ``text``; a bad line is an error that names it.

    With a header the file may have more columns than these, without one it has exactly these in this order.
    """
    import pandas as pd  # takes a quarter of a second, and most runs read no table

    names = _header(path, columns) if header else list(columns)
    kinds: dict[int, Any] = {k: str if name in text else np.float64 for k, name in enumerate(names)}
    try:
        frame = pd.read_csv(path, header=None, skiprows=int(header), dtype=kinds, encoding="utf-8")
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise _bad_line(path, names, text, header, str(error)) from None
    if frame.shape[1] != len(names):
        raise _bad_line(path, names, text, header, "its lines differ in length")
    frame.columns = pd.Index(names)
    numbers = frame[[name for name in names if name not in text]].to_numpy()
    if frame.isna().to_numpy().any() or not bool((np.abs(numbers) <= LARGEST).all()):
        raise _bad_line(path, names, text, header, "numbers are missing")
    return frame[list(columns)]


def _header(path: Path, wanted: Sequence[str]) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            found = next(csv.reader(file), [])
    except OSError as error:
        raise _unreadable(path, error) from None
    except csv.Error:
        found = []
    for name in wanted:
        if found.count(name) != 1:
            raise FedapmError(f"{path} has no column {name!r} in its first line, so it is not a published file.")
    return found


def _bad_line(path: Path, names: Sequence[str], text: Sequence[str], header: bool, reason: str) -> FedapmError:
    """What is wrong with a table that could not be read at once, found by going through it line by line."""
    advice = "mend the line or unpack the published file again."
    seen = 0
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = csv.reader(file)
            if header:
                next(rows, None)
            for row in filter(None, rows):
                seen += 1
                line = f"{path}, line {rows.line_num}"
                if len(row) != len(names):
                    return FedapmError(f"{line}: {len(row)} columns instead of {len(names)}; {advice}")
                for name, value in zip(names, row, strict=True):
                    if name in text and value:
                        continue
                    if name in text or not _is_number(value):
                        shown = repr(value if len(value) <= 20 else value[:20] + "…") if value.strip() else "nothing"
                        return FedapmError(f"{line}: {shown} where a number should be ({name}); {advice}")
    except (OSError, csv.Error) as error:
        reason = str(error)
    if not seen:
        return FedapmError(f"{path} is empty; unpack the published file again.")
    return FedapmError(f"{path} is not a table of numbers ({reason.splitlines()[0]}); unpack the published file again.")


def _is_number(value: str) -> bool:
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and abs(number) <= LARGEST


def _unreadable(path: Path, error: OSError) -> FedapmError:
    return FedapmError(f"{path} cannot be read ({error.strerror or error}).")


def prepared(path: Path, classes: Sequence[str], person: str) -> Windows:
    """Windows that were cut before and are kept in one NumPy file.

    Its arrays are acc and gyro (n, 3, 128), subject, activity (numbers) and activities (their names). ``person`` is
    the format of a subject's id.
    """
    arrays = _arrays(path, ("acc", "gyro", "subject", "activity", "activities"))
    count = len(arrays["acc"]) if arrays["acc"].ndim else 0
    if not count:
        raise FedapmError(f"{path}: its array acc holds no windows.")
    for name in SENSORS:
        if arrays[name].shape != (count, AXES, LENGTH) or arrays[name].dtype.kind != "f":
            raise _misfit(path, name, arrays[name], f"floating-point numbers of shape ({count}, {AXES}, {LENGTH})")
        if not bool((np.abs(arrays[name]) <= LARGEST).all()):
            raise FedapmError(f"{path}: its array {name} holds NaN or infinite values.")
    for name in ("subject", "activity"):
        if arrays[name].shape != (count,) or arrays[name].dtype.kind not in "iu":
            raise _misfit(path, name, arrays[name], f"{count} whole numbers, one for each window")
    if arrays["activities"].ndim != 1 or arrays["activities"].dtype.kind != "U":
        raise _misfit(path, "activities", arrays["activities"], "a row of names")
    names = arrays["activities"].tolist()
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise FedapmError(f"{path}: its array activities names {unknown[0]!r}, which is none of {', '.join(classes)}.")
    activity = arrays["activity"].astype(np.int64)
    if activity.min() < 0 or activity.max() >= len(names):
        raise FedapmError(f"{path}: its array activity holds numbers that are not between 0 and {len(names) - 1}.")
    targets = np.array([classes.index(name) for name in names])[activity]
    owners = np.array([person.format(subject) for subject in arrays["subject"].tolist()])
    return Windows(arrays["acc"], arrays["gyro"], targets, owners)


def _arrays(path: Path, wanted: Sequence[str]) -> dict[str, Array]:
    damage = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError, RuntimeError)
    found: dict[str, Array] = {}
    try:
        # opened here, because NumPy leaves a file open that it cannot read
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            for name in wanted:
                if name not in file.files:
                    raise FedapmError(f"{path} has no array {name}; it should hold {', '.join(wanted)}.")
                try:
                    found[name] = np.asarray(file[name])
                except damage:
                    raise FedapmError(f"{path}: its array {name} is damaged and cannot be read.") from None
    except (*damage, TypeError):
        raise FedapmError(f"{path} is damaged or not a NumPy file of several arrays (.npz).") from None
    return found


def _misfit(path: Path, name: str, array: Array, wanted: str) -> FedapmError:
    return FedapmError(f"{path}: its array {name} should be {wanted}, not {array.dtype} of shape {array.shape}.")
