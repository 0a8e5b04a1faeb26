"""Reading the files of data sets; every failure is one line that names the file and says what to do."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedapm.errors import FedapmError

Array = np.ndarray[Any, Any]


def read_bytes(path: Path, advice: str) -> bytes:
    """The content of a file; ``advice`` ends the message if it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FedapmError(f"{path} is missing; {advice}.") from None
    except OSError as error:
        raise unreadable(path, error) from None


def read_text(path: Path, advice: str) -> str:
    """The content of a UTF-8 file; ``advice`` ends the message if it is missing or in another encoding."""
    content = read_bytes(path, advice)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FedapmError(f"{path}, line {line} is not UTF-8; {advice}.") from None


def unreadable(path: Path, error: OSError) -> FedapmError:
    """The error for a file that the system does not let us read."""
    return FedapmError(f"{path} cannot be read ({error.strerror or error}); check its permissions.")


def read_npz(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Some arrays of a NumPy file; pickled ones are refused."""
    damage = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError, RuntimeError)
    arrays: dict[str, Array] = {}
    try:
        # opened here, because NumPy does not close a file that it cannot read
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            for name in names:
                if name not in file.files:
                    raise FedapmError(f"{path} has no array {name}; it should hold {', '.join(names)}.")
                try:
                    arrays[name] = np.asarray(file[name])
                except damage:
                    raise FedapmError(f"{path}: its array {name} is damaged and cannot be read.") from None
    except (*damage, TypeError):
        raise FedapmError(f"{path} is damaged or not a NumPy file of several arrays (.npz).") from None
    return arrays
