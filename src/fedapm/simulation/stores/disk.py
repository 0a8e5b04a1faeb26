"""Disk store: clients' states in files, for populations that outgrow memory.

Every client that has taken part has a row in a file; what is held in memory is which row that is. Rows are read and
written at their place in the file and not by mapping the file into memory: the pages of a mapping count as the
process's own, those of the operating system's cache do not.

A row that a checkpoint refers to is not written again while that checkpoint is kept, so a checkpoint is no copy of the
rows, only a list of where they are. A client's new memory goes into a free row, and the list is changed when all of a
commit is written: whenever the process is killed, the rows of the checkpoints are as they were.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.core.algorithm import State
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.runs.files import read_tensors
from fedapm.runs.layout import ROWS as ROWS
from fedapm.simulation.stores.base import ClientState, InitClient, SavedClients, Snapshot, Store, restore
from fedapm.simulation.stores.layout import Key, Layout, unpack
from fedapm.simulation.stores.rows import Integers, OpenFiles, RowFile, Scratch, sync_folder

KEEP_LAST = 2
"""How many checkpoints are kept."""
CHECKPOINT = re.compile(r"round-(\d+)\.safetensors")


@dataclass(frozen=True)
class Index:
    """Where the memories of the clients that have taken part are at one moment."""

    population: int
    layouts: list[Layout]
    entries: Integers
    """Four lines: the clients in increasing order, the numbers of their layouts, their rows, these rows' checksums."""

    @property
    def note(self) -> dict[str, Any]:
        """All but the entries, as JSON."""
        return {"population": self.population, "layouts": [layout.note for layout in self.layouts]}

    @classmethod
    def of(cls, note: Mapping[str, Any], entries: Tensor) -> Index:
        """An index that was in a file."""
        index = cls(int(note["population"]), [Layout.of_note(n) for n in note["layouts"]], entries.cpu().numpy())
        clients, layouts, rows, _ = index.entries
        rising = np.diff(clients, prepend=-1, append=index.population) > 0
        if not rising.all() or ((layouts < 0) | (layouts >= len(index.layouts)) | (rows < 0)).any():
            raise ValueError("its list of rows")
        return index


class DiskStore(Store):
    """Everything in the files of a folder; in memory are only the clients that are asked for.

    Nothing is read or written before the first commit or :meth:`adopt`. What was handed out never changes. A store
    belongs to one thread, and a folder to one store.
    """

    def __init__(self, folder: Path, init: InitClient, population: int, device: torch.device | str = "cpu") -> None:
        if not hasattr(os, "preadv"):
            raise FedapmError('this system cannot keep clients in files; set engine.store = "memory".')
        self.folder, self.population, self.device = folder, population, device
        self.damaged = False
        self.held: dict[str, Index] = {}
        """The checkpoints whose rows are not written to, by name."""
        self._init = init
        self._open = OpenFiles()
        self._files: list[RowFile] = []
        self._numbers: dict[Key, int] = {}
        self._layout: Integers = np.zeros(population, np.int64)
        self._row: Integers = np.full(population, -1, np.int64)
        self._crc: Integers = np.zeros(population, np.int64)
        self._scratch: tuple[int, Scratch] | None = None

    @classmethod
    def temporary(cls, init: InitClient, population: int, device: torch.device | str = "cpu") -> DiskStore:
        """A store in a folder of its own, which goes when the store does."""
        folder = tempfile.mkdtemp(prefix="fedapm-")
        store = cls(Path(folder), init, population, device)
        weakref.finalize(store, _remove, folder, os.getpid())
        return store

    def get(self, client: int) -> ClientState:
        """A client's memory, or how it starts."""
        row = int(self._row[client])
        if row < 0:
            return self._init(client)
        file = self._files[int(self._layout[client])]
        # new memory each time, so that what is handed out shares nothing with a later read
        memory = torch.empty(file.layout.size, dtype=torch.uint8)
        try:
            file.read(row, int(self._crc[client]), client, memory.numpy().data)
        except (FedapmError, OSError) as error:
            self.damaged = True
            if isinstance(error, OSError):
                raise
            raise FedapmError(f"{str(error).removesuffix('.')}; resume the run from its last checkpoint.") from None
        return file.layout.read(memory, self.device)

    def commit(self, updates: Mapping[int, ClientState]) -> None:
        """Replace the memories of some clients: of all of them or, if this fails, of none."""
        written = []
        for client, client_state in updates.items():
            unpacked = unpack(client_state)
            number = self._number(unpacked.key)
            file, scratch = self._files[number], self._scratch_for(number)
            scratch.fill(unpacked.numbers, unpacked.tensors)
            row = file.take()
            written.append((client, number, row, file.write(row, scratch.memory)))
        for client, number, row, crc in written:
            if self._row[client] >= 0:
                self._files[self._layout[client]].give_back(int(self._row[client]))
            self._layout[client], self._row[client], self._crc[client] = number, row, crc

    def touched(self) -> Iterator[tuple[int, ClientState]]:
        """The clients whose memory is no longer how it started, in order."""
        for client in self.clients().tolist():
            yield client, self.get(client)

    def clients(self) -> Integers:
        """The clients that :meth:`touched` gives, without what they keep."""
        return np.flatnonzero(self._row >= 0)

    def index(self) -> Index:
        """Where everything is now; all of it is on the disk when this returns."""
        if self.damaged:
            raise FedapmError(f"{self.folder} has lost the memories of some clients, so there is nothing to save.")
        try:
            for file in self._files:
                file.flush()
        except OSError:
            # what could not be written may be forgotten by the system, and a second attempt would not notice
            self.damaged = True
            raise
        sync_folder(self.folder)
        clients = self.clients()
        entries = np.stack([clients, self._layout[clients], self._row[clients], self._crc[clients]])
        return Index(self.population, [file.layout for file in self._files], entries)

    def hold(self, indices: Mapping[str, Index]) -> None:
        """Keep the rows of these checkpoints as they are, and those of none other."""
        self.held = dict(indices)
        held = [_by_layout(*self._places(index)) for index in self.held.values()]
        clients = self.clients()
        now = _by_layout(self._layout[clients], self._row[clients])
        none = np.zeros(0, np.int64)
        for number, file in enumerate(self._files):
            file.recount([rows.get(number, none) for rows in held], now.get(number, none))

    def adopt(self, index: Index) -> None:
        """Go on from where everything was at some moment. Every row is read once, so that damage is found first."""
        if index.population != self.population:
            raise FedapmError(
                f"{self.folder} holds the memories of {index.population} clients, but this run has {self.population}."
            )
        numbers, rows = self._places(index)
        clients, crcs = index.entries[0], index.entries[3]
        for place in np.lexsort((rows, numbers)).tolist():
            file = self._files[numbers[place]]
            memory = self._scratch_for(int(numbers[place])).memory[: file.layout.size]
            file.read(int(rows[place]), int(crcs[place]), int(clients[place]), memory)
        self._row[:] = -1
        self._layout[clients], self._row[clients], self._crc[clients] = numbers, rows, crcs
        self.hold(self.held)

    def snapshot(self, folder: Path) -> Snapshot:
        """Where everything is: the rows stay where they are, in the checkpoints' own folder."""
        if same_folder(self.folder, folder / ROWS):
            store = self
        else:
            store = DiskStore(folder / ROWS, self.get, self.population, self.device)
            store.hold(row_indices(checkpoint_files(folder)))
            # in one commit, so that there is no half copy
            store.commit(TouchedClients(self))
        index = store.index()

        def settle(path: Path) -> None:
            # the new checkpoint is sure to be found again, so rows of older ones may be used
            # a later round belongs to a course that was given up, and its rows are not held
            files = checkpoint_files(folder)
            older = [p for p in files if p.name <= path.name][:KEEP_LAST]
            for old in set(files) - set(older):
                old.unlink(missing_ok=True)
            store.hold({p.name: store.held[p.name] for p in older if p.name in store.held} | {path.name: index})

        return Snapshot({"rows": torch.from_numpy(index.entries)}, {"rows": index.note}, settle)

    def restore(self, saved: SavedClients) -> None:
        """Go on from a checkpoint; where its rows are this store's own, nothing is copied."""
        own = same_folder(self.folder, saved.path.parent / ROWS)
        if own:
            # the run may have to go back to these if this checkpoint is lost
            self.hold(row_indices([p for p in checkpoint_files(saved.path.parent) if p.name <= saved.path.name]))
        if own and saved.in_rows:
            saved.adopt_into(self)
        else:
            self.commit(saved.read(self.get))

    def _places(self, index: Index) -> tuple[Integers, Integers]:
        """The layouts of an index's clients, as they are numbered here, and their rows."""
        _, layouts, rows, _ = index.entries
        return np.array([self._number(layout.key) for layout in index.layouts], np.int64)[layouts], rows

    def _number(self, key: Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._files)
            self._files.append(RowFile(self.folder, Layout(key), self._open))
        return number

    def _scratch_for(self, number: int) -> Scratch:
        # there is only one, because there may be as many layouts as clients
        if self._scratch is None or self._scratch[0] != number:
            self._scratch = number, Scratch(self._files[number].layout, self._files[number].stride)
        return self._scratch[1]


class TouchedClients(Mapping[int, ClientState]):
    """The clients that have taken part, each read when it is asked for."""

    def __init__(self, store: DiskStore) -> None:
        self._store = store
        self._clients: list[int] = store.clients().tolist()

    def __getitem__(self, client: int) -> ClientState:
        return self._store.get(client)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


@dataclass(frozen=True)
class CheckpointClients:
    """The clients of one checkpoint file, in it or in rows beside it."""

    path: Path
    index: Index | None
    states: Mapping[int, ClientState]
    device: torch.device | str

    @classmethod
    def of(
        cls, path: Path, about: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device | str
    ) -> CheckpointClients:
        """The clients that a checkpoint's note and tensors describe."""
        if (index := _index(about, tensors)) is not None:
            return cls(path, index, {}, device)
        states = {}
        for client, note in about["clients"].items():
            buffers = restore(f"buffers/{client}", tensors, note["buffers"])["all"]
            if not isinstance(buffers, Vec):
                raise KeyError("buffers")
            states[int(client)] = ClientState(State(**restore(f"client/{client}", tensors, note["state"])), buffers)
        return cls(path, None, states, device)

    @property
    def in_rows(self) -> bool:
        """Whether their states are in rows beside the checkpoint."""
        return self.index is not None

    def read(self, init: InitClient) -> Mapping[int, ClientState]:
        """Those whose state is no longer how it started, each read when it is asked for."""
        if self.index is None:
            return self.states
        rows = DiskStore(self.path.parent / ROWS, init, self.index.population, self.device)
        self.adopt_into(rows)
        return TouchedClients(rows)

    def adopt_into(self, store: DiskStore) -> None:
        """Let a store go on from these rows."""
        assert self.index is not None
        try:
            store.adopt(self.index)
        except FedapmError as error:
            raise FedapmError(f"{self.path} cannot be used: {error}") from None


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if CHECKPOINT.fullmatch(p.name)), reverse=True)


def row_indices(paths: Iterable[Path]) -> dict[str, Index]:
    """The indices of those checkpoints that are whole and whose clients are in rows, by file name."""
    indices = {}
    for path in paths:
        with suppress(FedapmError, KeyError, TypeError, ValueError, AttributeError):
            tensors, about = read_tensors(path)
            if (index := _index(about, tensors)) is not None:
                indices[path.name] = index
    return indices


def same_folder(one: Path, other: Path) -> bool:
    """Whether two paths mean the same folder."""
    return one.resolve() == other.resolve()


def _index(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Index | None:
    return Index.of(about["rows"], tensors["rows"]) if "rows" in about else None


def _remove(folder: str, owner: int) -> None:
    # a process that was forked has the store too, but the folder is not its own
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _by_layout(numbers: Integers, rows: Integers) -> dict[int, Integers]:
    order = np.argsort(numbers, kind="stable")
    unpacked, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(unpacked.tolist(), np.split(rows[order], starts[1:]), strict=True)) if len(rows) else {}
