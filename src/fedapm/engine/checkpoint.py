"""Checkpoints: everything needed to go on from a round, in one checked file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedapm.algorithm import State
from fedapm.engine.loop import Progress, Record
from fedapm.engine.store import Kept, flatten, restore
from fedapm.errors import FedapmError
from fedapm.files import read_tensors, write_tensors
from fedapm.vec import Vec

KEPT = 2
PATTERN = re.compile(r"round-(\d+)\.safetensors")


class Checkpointer:
    """Observer that saves the run every so many rounds and whenever it stops."""

    def __init__(self, folder: Path, every: int, last: int) -> None:
        self.folder, self.every, self.last = folder, every, last
        self._saved: int | None = None

    def on_round(self, progress: Progress, record: Record, seconds: float) -> None:
        """Save in the rounds it is due."""
        del record, seconds
        if progress.round == self.last or (self.every and progress.round % self.every == 0):
            self._save(progress)

    def on_stop(self, progress: Progress, status: str) -> None:
        """Save where the run stands."""
        del status
        if self._saved != progress.round:
            self._save(progress)

    def _save(self, progress: Progress) -> None:
        save(self.folder, progress)
        self._saved = progress.round


def save(folder: Path, progress: Progress) -> Path:
    """Write a checkpoint, then remove all but the newest few."""
    tensors: dict[str, Tensor] = {}
    clients: dict[str, Any] = {}
    server, server_note = flatten("server", progress.server)
    tensors |= server
    for client, kept in progress.store.touched():
        state, state_note = flatten(f"client/{client}", kept.state)
        buffers, buffer_note = flatten(f"buffers/{client}", {"all": kept.buffers})
        tensors |= state | buffers
        clients[str(client)] = {"state": state_note, "buffers": buffer_note}
    about = {
        "round": progress.round,
        "bytes_up": progress.bytes_up,
        "bytes_down": progress.bytes_down,
        "server": server_note,
        "clients": clients,
    }
    path = folder / f"round-{progress.round:06d}.safetensors"
    write_tensors(path, tensors, about)
    for old in found(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if PATTERN.fullmatch(p.name)), reverse=True)


def load(path: Path, start: Progress, device: torch.device | str = "cpu") -> Progress:
    """Read a checkpoint into a run that has just been set up."""
    stored, about = read_tensors(path)
    tensors = {name: tensor.to(device) for name, tensor in stored.items()}
    try:
        server = State(**restore("server", tensors, about["server"]))
        updates = {}
        for client, note in about["clients"].items():
            buffers = restore(f"buffers/{client}", tensors, note["buffers"])["all"]
            if not isinstance(buffers, Vec):
                raise KeyError("buffers")
            updates[int(client)] = Kept(State(**restore(f"client/{client}", tensors, note["state"])), buffers)
        numbers = int(about["round"]), int(about["bytes_up"]), int(about["bytes_down"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FedapmError(f"{path} is not a checkpoint of this kind of run ({error}).") from None
    _check_fits(path, server, start.server)
    start.store.commit(updates)
    return Progress(numbers[0], server, start.store, numbers[1], numbers[2])


def load_latest(
    folder: Path, start: Progress, device: torch.device | str, warn: Callable[[str], None]
) -> Progress | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over."""
    for path in found(folder):
        try:
            return load(path, start, device)
        except FedapmError as error:
            warn(f"{error} Trying the one before it.")
    return None


def _check_fits(path: Path, saved: State, fresh: State) -> None:
    for field, vector in fresh.vectors.items():
        other = saved.vectors.get(field)
        if other is None or {n: t.shape for n, t in vector.items()} != {n: t.shape for n, t in other.items()}:
            raise FedapmError(f"{path} belongs to another model: its {field!r} has other names or shapes.")
