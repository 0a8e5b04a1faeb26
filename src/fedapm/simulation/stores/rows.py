"""Rows: files of clients' states with one layout each, read and written at their place."""

from __future__ import annotations

import os
import weakref
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedapm.errors import FedapmError
from fedapm.runs.files import sync_folder as sync_folder
from fedapm.simulation.stores.layout import Layout

PAGE = 4096
OPEN_FILES = 32

Integers = npt.NDArray[np.int64]


class Scratch:
    """Memory for one row on its way into a file."""

    def __init__(self, layout: Layout, size: int) -> None:
        row = torch.zeros(size, dtype=torch.uint8)
        self.memory = row.numpy().data
        self._numbers, self._views = layout.numbers(row), layout.views(row)

    @torch.no_grad()
    def fill(self, numbers: list[float], tensors: list[Tensor]) -> None:
        """Put a client's memory in place."""
        self._numbers[:] = numbers
        if tensors:
            torch._foreach_copy_(self._views, tensors)


class RowFile:
    """A file of rows with one layout, some of them in use and the others free."""

    def __init__(self, folder: Path, layout: Layout, files: OpenFiles) -> None:
        self.path, self.layout = folder / f"{layout.digest}.rows", layout
        # whole pages are written without reading what was there before
        self.stride = layout.size if layout.size < PAGE else -(-layout.size // PAGE) * PAGE
        self._open = files
        self._count = 0
        self._free: list[int] = []
        self._held = np.zeros(0, np.bool_)
        self._dirty = False

    def take(self) -> int:
        """A row that is free."""
        if self._free:
            return self._free.pop()
        self._count += 1
        return self._count - 1

    def give_back(self, row: int) -> None:
        """A row is no longer in use; it is free unless a checkpoint has it."""
        if row >= len(self._held) or not self._held[row]:
            self._free.append(row)

    def recount(self, held: Iterable[Integers], now: Integers) -> None:
        """Find out which rows are free, given those of checkpoints and those in use."""
        held = list(held)
        self._count = 1 + max((int(rows.max()) for rows in (*held, now) if rows.size), default=-1)
        self._held = np.zeros(self._count, np.bool_)
        for rows in held:
            self._held[rows] = True
        used = self._held.copy()
        used[now] = True
        # from the end, so that those at the beginning of the file are taken first
        self._free = np.flatnonzero(~used)[::-1].tolist()

    def read(self, row: int, crc: int, client: int, memory: memoryview) -> None:
        """Fill memory from a row, or say whose row is damaged.

        A system that fails to read says nothing of what is there, so that is another kind of error.
        """
        whose = f"the memory of the client at position {client}"
        try:
            got = _read(self._open(self.path, os.O_RDONLY), memory, row * self.stride)
        except FileNotFoundError:
            raise FedapmError(f"{self.path} is missing, and with it {whose}.") from None
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        if got < len(memory):
            raise FedapmError(f"{self.path} is cut off and lacks {whose}.")
        if zlib.crc32(memory) != crc:
            raise FedapmError(f"{self.path} is damaged: {whose} does not match its checksum.")

    def write(self, row: int, content: memoryview) -> int:
        """Write a row; returns its checksum."""
        self._dirty = True
        try:
            _write(self._open(self.path, os.O_RDWR | os.O_CREAT), content, row * self.stride)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        return zlib.crc32(content[: self.layout.size])

    def flush(self) -> None:
        """Wait until everything written is on the disk."""
        if not self._dirty:
            return
        try:
            # opened anew, so that a file that was removed in the meantime is missed here
            handle = os.open(self.path, os.O_RDWR)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self._dirty = False


class OpenFiles:
    """Files that stay open, but never more than a few, and closed when nobody uses them any more."""

    def __init__(self) -> None:
        self._handles: dict[tuple[Path, int], int] = {}
        weakref.finalize(self, _close_all, self._handles)

    def __call__(self, path: Path, flags: int) -> int:
        """The file, opened in this way."""
        handle = self._handles.get((path, flags))
        if handle is None:
            if len(self._handles) == OPEN_FILES:
                os.close(self._handles.pop(next(iter(self._handles))))
            if flags & os.O_CREAT:
                path.parent.mkdir(parents=True, exist_ok=True)
            handle = self._handles[path, flags] = os.open(path, flags, 0o666)
        return handle


def _close_all(handles: dict[tuple[Path, int], int]) -> None:
    while handles:
        os.close(handles.popitem()[1])


def _read(handle: int, memory: memoryview, at: int) -> int:
    """How much of the memory could be filled; the system may take several goes."""
    done = 0
    while done < len(memory) and (got := os.preadv(handle, [memory[done:]], at + done)):
        done += got
    return done


def _write(handle: int, content: memoryview, at: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(handle, content[done:], at + done)
