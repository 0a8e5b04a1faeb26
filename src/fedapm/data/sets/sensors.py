"""What the sensor data sets share: recordings of an accelerometer and a gyroscope, cut into windows."""

from __future__ import annotations

import csv
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from fedapm.data.dataset import DataSet, Pool, Source
from fedapm.data.sets.files import Array, read_npz, unreadable
from fedapm.errors import FedapmError

if TYPE_CHECKING:
    import pandas as pd

WINDOW = 128
"""Samples in a window."""
AXES = 3
SENSORS = ("acc", "gyro")

# windows are stored in single precision, so a larger number would become infinite
LARGEST = float(np.finfo(np.float32).max)


def cut_windows(signal: Array, length: int = WINDOW) -> Array:
    """Cut a signal (axes, samples) into consecutive windows (n, axes, length); an incomplete last one is dropped."""
    axes, samples = signal.shape
    count = samples // length
    return signal[:, : count * length].reshape(axes, count, length).transpose(1, 0, 2)


def standardize_windows(windows: Array) -> Array:
    """Give each window mean 0 and standard deviation 1 on each axis; a constant axis becomes zeros."""
    deviation = windows - windows.mean(-1, keepdims=True)
    spread = windows.std(-1, keepdims=True)
    # the mean of equal numbers can differ from them by rounding, so a spread above 0 does not prove that they vary
    varies = (windows.max(-1, keepdims=True) > windows.min(-1, keepdims=True)) & (spread > 0)
    result: Array = np.where(varies, deviation / np.where(varies, spread, 1.0), 0.0)
    return result


@dataclass(frozen=True)
class Scale:
    """The mean and standard deviation of each axis over a whole data set.

    They are constants, so that one person's data does not depend on who else is in the data root.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, windows: Array) -> Array:
        """Standardize windows (n, axes, samples)."""
        result: Array = (windows - np.asarray(self.mean)[:, None]) / np.asarray(self.std)[:, None]
        return result


@dataclass(frozen=True)
class Windows:
    """Windows of two sensors, with the activity and the person of each."""

    acc: Array
    gyro: Array
    targets: Array
    owners: Array

    @classmethod
    def of_recording(cls, acc: Array, gyro: Array, target: int, owner: str) -> Windows:
        """The windows of one activity of one person."""
        return cls(acc, gyro, np.full(len(acc), target), np.full(len(acc), owner))

    @classmethod
    def concatenate(cls, parts: Sequence[Windows], folder: Path) -> Windows:
        """The windows of several recordings, in order; an error if there is none."""
        filled = [part for part in parts if len(part.targets)]
        if not filled:
            raise FedapmError(f"{folder} holds no recording that is long enough for a window of {WINDOW} samples.")
        columns = ([getattr(part, name) for part in filled] for name in ("acc", "gyro", "targets", "owners"))
        return cls(*map(np.concatenate, columns))

    def pool(self, classes: Sequence[str]) -> Pool:
        """The windows as samples: the values of both sensors, then their lengths."""
        lengths = torch.full((len(self.targets),), WINDOW, dtype=torch.int64)
        values = (torch.from_numpy(np.ascontiguousarray(part, np.float32)) for part in (self.acc, self.gyro))
        return Pool(
            torch.from_numpy(self.targets.astype(np.int64)),
            tuple(classes),
            SENSORS,
            self.owners,
            inputs=(*values, lengths, lengths.clone()),
        )


@dataclass(frozen=True, order=True)
class Recording:
    """A file of a sensor data set; recordings are read in their sorted order."""

    order: tuple[int | str, ...]
    path: Path
    owner: str
    target: int = 0
    """The activity, if the file has only one."""


class SensorSet(DataSet):
    """Activities of people who carry an accelerometer and a gyroscope."""

    title: ClassVar[str]
    activities: ClassVar[tuple[str, ...]]
    windows_file: ClassVar[str] = ""
    """A NumPy file in the root with windows that were cut before, used if the published files are missing."""
    owner_format: ClassVar[str] = "{}"
    """How a person's number in that file becomes an id."""
    acc_scale: ClassVar[Scale | None] = None
    gyro_scale: ClassVar[Scale | None] = None
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "data": {"partition": "natural"},
        "model": {"name": "har", "preset": "split_input"},
        "solver": {"lr": 0.1, "momentum": 0.9, "batch_size": 50},
        "engine": {"evaluate_every": 5},
    }

    @abstractmethod
    def locate(self, root: Path) -> Path | None:
        """The folder of recordings in a data root; None if there is none."""

    @abstractmethod
    def missing(self, root: Path) -> str:
        """The error message if there are neither recordings nor the file of windows."""

    @abstractmethod
    def recordings(self, folder: Path) -> list[Recording]:
        """All recordings in a folder."""

    @abstractmethod
    def windows(self, recording: Recording) -> Windows:
        """The windows of one recording."""

    def read(self, source: Source) -> Pool:
        """All windows, from the published files or else from the file of windows."""
        root = source.folder(self.name)
        folder = self.locate(root)
        if folder is not None:
            windows = self._read_recordings(folder, source)
        elif self.windows_file and (root / self.windows_file).is_file():
            windows = read_windows(root / self.windows_file, self.activities, self.owner_format)
        else:
            raise FedapmError(self.missing(root))
        acc = self.acc_scale(windows.acc) if self.acc_scale is not None else windows.acc
        gyro = self.gyro_scale(windows.gyro) if self.gyro_scale is not None else windows.gyro
        return Windows(acc, gyro, windows.targets, windows.owners).pool(self.activities)

    def _read_recordings(self, folder: Path, source: Source) -> Windows:
        recordings = sorted(self.recordings(folder))
        parts = []
        for done, recording in enumerate(recordings, 1):
            parts.append(self.windows(recording))
            source.progress(f"reading {self.title}", done, len(recordings))
        return Windows.concatenate(parts, folder)


def read_table(path: Path, columns: Sequence[str], *, header: bool, text: Sequence[str] = ()) -> pd.DataFrame:
    """Read columns of a CSV file.

    Args:
        path: The file.
        columns: The names of the columns.
        header: Whether the first line names the columns. Such a file may have further columns; a file without a header
            has exactly these, in this order.
        text: The columns that hold text; all others hold numbers.

    Raises:
        FedapmError: The file cannot be read, or a line is damaged; the message names the line.
    """
    import pandas as pd  # slow to import, and most runs read no table

    names = _header(path, columns) if header else list(columns)
    types: dict[int, Any] = {k: str if name in text else np.float64 for k, name in enumerate(names)}
    try:
        frame = pd.read_csv(path, header=None, skiprows=int(header), dtype=types, encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise _bad_line(path, names, text, header, str(error)) from None
    if frame.shape[1] != len(names):
        raise _bad_line(path, names, text, header, "its lines differ in length")
    frame.columns = pd.Index(names)
    numbers = frame[[name for name in names if name not in text]].to_numpy()
    if frame.isna().to_numpy().any() or not bool((np.abs(numbers) <= LARGEST).all()):
        raise _bad_line(path, names, text, header, "numbers are missing")
    return frame[list(columns)]


def _header(path: Path, columns: Sequence[str]) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            header = next(csv.reader(file), [])
    except OSError as error:
        raise unreadable(path, error) from None
    except csv.Error:
        header = []
    for name in columns:
        if header.count(name) != 1:
            raise FedapmError(f"{path} has no column {name!r} in its first line, so it is not a published file.")
    return header


def _bad_line(path: Path, names: Sequence[str], text: Sequence[str], header: bool, reason: str) -> FedapmError:
    """The error for a table that pandas cannot read, with the first bad line."""
    advice = "repair the line or unpack the published file again."
    count = 0
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = csv.reader(file)
            if header:
                next(rows, None)
            for row in filter(None, rows):
                count += 1
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
    if not count:
        return FedapmError(f"{path} is empty; unpack the published file again.")
    return FedapmError(f"{path} is not a table of numbers ({reason.splitlines()[0]}); unpack the published file again.")


def _is_number(value: str) -> bool:
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and abs(number) <= LARGEST


def read_windows(path: Path, classes: Sequence[str], owner_format: str) -> Windows:
    """Read windows that were cut before from a NumPy file.

    Args:
        path: A file with the arrays acc and gyro (n, 3, 128), subject and activity (n numbers each), and activities
            (the names of the activities).
        classes: The names of the data set's activities.
        owner_format: How a subject's number becomes an id.
    """
    arrays = read_npz(path, ("acc", "gyro", "subject", "activity", "activities"))
    count = len(arrays["acc"]) if arrays["acc"].ndim else 0
    if not count:
        raise FedapmError(f"{path}: its array acc holds no windows.")
    for name in SENSORS:
        if arrays[name].shape != (count, AXES, WINDOW) or arrays[name].dtype.kind != "f":
            raise _misfit(path, name, arrays[name], f"floating-point numbers of shape ({count}, {AXES}, {WINDOW})")
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
    owners = np.array([owner_format.format(subject) for subject in arrays["subject"].tolist()])
    return Windows(arrays["acc"], arrays["gyro"], targets, owners)


def _misfit(path: Path, name: str, array: Array, expected: str) -> FedapmError:
    return FedapmError(f"{path}: its array {name} should be {expected}, not {array.dtype} of shape {array.shape}.")
