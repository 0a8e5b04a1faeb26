"""Checkpoints: everything needed to go on from a round, in one checked file.

Where clients are kept in files, the checkpoint says which of their rows it means; the rows stay where they are.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedapm.core.algorithm import State
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.runs.files import read_tensors, write_tensors
from fedapm.simulation.loop import Progress, Record
from fedapm.simulation.stores.base import ClientState, Store, flatten, restore
from fedapm.simulation.stores.disk import ROWS, DiskStore, Everyone, Index, sync_folder

logger = logging.getLogger(__name__)
KEPT = 2
PATTERN = re.compile(r"round-(\d+)\.safetensors")


class Checkpointer:
    """Observer that saves the run every so many rounds and whenever it stops."""

    def __init__(self, folder: Path, every: int, last: int) -> None:
        self.folder, self.every, self.last = folder, every, last
        self._saved: int | None = None

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        """Save in the rounds it is due."""
        del record, seconds
        if progress.round == self.last or (self.every and progress.round % self.every == 0):
            self._save(progress)

    def on_run_end(self, progress: Progress, status: str) -> None:
        """Save where the run stands, unless some of it was lost: then older checkpoints are worth more."""
        del status
        lost = isinstance(progress.store, DiskStore) and progress.store.damaged
        if self._saved != progress.round and not lost:
            self._save(progress)

    def _save(self, progress: Progress) -> None:
        save(self.folder, progress)
        self._saved = progress.round


def save(folder: Path, progress: Progress) -> Path:
    """Write a checkpoint, then remove all but the newest few."""
    if isinstance(progress.store, DiskStore):
        return _save_mapped(folder, progress, progress.store)
    tensors: dict[str, Tensor] = {}
    clients: dict[str, Any] = {}
    for client, kept in progress.store.touched():
        state, state_note = flatten(f"client/{client}", kept.state)
        buffers, buffer_note = flatten(f"buffers/{client}", {"all": kept.buffers})
        tensors |= state | buffers
        clients[str(client)] = {"state": state_note, "buffers": buffer_note}
    path = _write(folder, progress, tensors, {"clients": clients})
    for old in found(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    if (folder / ROWS).is_dir() and not _indices(found(folder)):
        shutil.rmtree(folder / ROWS, ignore_errors=True)
    return path


def _save_mapped(folder: Path, progress: Progress, store: DiskStore) -> Path:
    if _same(store.folder, folder / ROWS):
        mine = store
    else:
        mine = DiskStore(folder / ROWS, store.get, store.population, store.device)
        mine.hold(_indices(found(folder)))
        _copy(store, mine)
    index = mine.index()
    path = _write(folder, progress, {"rows": torch.from_numpy(index.entries)}, {"rows": index.note})
    # only when the new checkpoint is sure to be found again may rows of older ones be used
    sync_folder(folder)
    # a later round is one of a course that was given up, and its rows are not held
    older = [p for p in found(folder) if p.name <= path.name]
    for old in set(found(folder)) - set(older[:KEPT]):
        old.unlink(missing_ok=True)
    mine.hold({p.name: mine.held[p.name] for p in older[:KEPT] if p.name in mine.held} | {path.name: index})
    return path


def _write(folder: Path, progress: Progress, clients: Mapping[str, Tensor], note: Mapping[str, Any]) -> Path:
    server, server_note = flatten("server", progress.server)
    about = {
        "round": progress.round,
        "bytes_up": progress.bytes_up,
        "bytes_down": progress.bytes_down,
        "server": server_note,
    }
    path = folder / f"round-{progress.round:06d}.safetensors"
    write_tensors(path, {**server, **clients}, {**about, **note})
    return path


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if PATTERN.fullmatch(p.name)), reverse=True)


def load(path: Path, start: Progress, device: torch.device | str = "cpu") -> Progress:
    """Read a checkpoint into a run that has just been set up, whichever kind of store either of them has."""
    stored, about = read_tensors(path)
    tensors = {name: tensor.to(device) for name, tensor in stored.items()}
    try:
        server = State(**restore("server", tensors, about["server"]))
        clients = _index(about, stored) or _clients(about["clients"], tensors)
        numbers = int(about["round"]), int(about["bytes_up"]), int(about["bytes_down"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FedapmError(f"{path} is not a checkpoint of this kind of run ({error}).") from None
    _check_fits(path, server, start.server)
    _put(path, clients, start.store, device)
    return Progress(numbers[0], server, start.store, numbers[1], numbers[2])


def _clients(notes: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[int, ClientState]:
    clients = {}
    for client, note in notes.items():
        buffers = restore(f"buffers/{client}", tensors, note["buffers"])["all"]
        if not isinstance(buffers, Vec):
            raise KeyError("buffers")
        clients[int(client)] = ClientState(State(**restore(f"client/{client}", tensors, note["state"])), buffers)
    return clients


def _put(path: Path, clients: Index | dict[int, ClientState], store: Store, device: torch.device | str) -> None:
    rows = path.parent / ROWS
    here = store if isinstance(store, DiskStore) and _same(store.folder, rows) else None
    if here is not None:
        # the run may have to go back to these if this checkpoint is lost
        here.hold(_indices([p for p in found(path.parent) if p.name <= path.name]))
    if not isinstance(clients, Index):
        store.commit(clients)
        return
    source = here or DiskStore(rows, store.get, clients.population, device)
    try:
        source.adopt(clients)
    except FedapmError as error:
        raise FedapmError(f"{path} cannot be used: {error}") from None
    if source is not here:
        _copy(source, store)


def _copy(source: DiskStore, target: Store) -> None:
    # in one commit, so that there is no half copy; where it goes into files, clients are read one by one
    everyone = Everyone(source)
    target.commit(everyone if isinstance(target, DiskStore) else dict(everyone))


def _index(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Index | None:
    return Index.of(about["rows"], tensors["rows"]) if "rows" in about else None


def _indices(paths: list[Path]) -> dict[str, Index]:
    """Of those checkpoints that are whole and whose clients are in rows, where these are."""
    indices = {}
    for path in paths:
        with suppress(FedapmError, KeyError, TypeError, ValueError, AttributeError):
            tensors, about = read_tensors(path)
            index = _index(about, tensors)
            if index is not None:
                indices[path.name] = index
    return indices


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def load_latest(folder: Path, start: Progress, device: torch.device | str) -> Progress | None:
    """The newest checkpoint that is whole; damaged ones are named in a warning and passed over."""
    for path in found(folder):
        try:
            return load(path, start, device)
        except FedapmError as error:
            logger.warning("%s Trying the one before it.", error)
    return None


def _check_fits(path: Path, saved: State, fresh: State) -> None:
    for field, vector in fresh.vectors.items():
        other = saved.vectors.get(field)
        if other is None or {n: t.shape for n, t in vector.items()} != {n: t.shape for n, t in other.items()}:
            raise FedapmError(f"{path} belongs to another model: its {field!r} has other names or shapes.")
