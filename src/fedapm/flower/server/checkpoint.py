"""Keeper: the server's checkpoints. One is written before a round is announced, so a kill never loses an announcement.

A checkpoint holds the server's state, the ledger, and the record of its round as far as it is known; only the
evaluation, which comes with the answers to the next announcement, may be missing from it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.core.algorithm import State
from fedapm.errors import FedapmError
from fedapm.flower.server.contributions import NONE, Contributions
from fedapm.flower.server.ledger import Ledger
from fedapm.flower.transport.version import FRESH
from fedapm.runs.files import read_tensors, write_tensors
from fedapm.simulation.checkpoint import KEPT, found
from fedapm.simulation.loop import Progress, Record
from fedapm.simulation.stores.base import flatten, restore
from fedapm.simulation.stores.disk import sync_folder


@dataclass(frozen=True)
class Saved:
    """A run as a checkpoint has it."""

    progress: Progress
    ledger: Ledger
    record: Record


class ServerCheckpoints:
    """Writes checkpoints and knows what they still need of clients and contributions."""

    def __init__(self, folder: Path, contributions: Contributions | None) -> None:
        self.folder, self.contributions = folder, contributions
        self._held: OrderedDict[Path, Ledger] = OrderedDict()

    def save(self, progress: Progress, ledger: Ledger, record: Record) -> None:
        """Write a checkpoint; when this returns it survives a power cut."""
        if self.contributions is not None:
            self.contributions.sync()
        tensors, server = flatten("server", progress.server)
        note: dict[str, Any] = {
            "round": progress.round,
            "bytes_up": progress.bytes_up,
            "bytes_down": progress.bytes_down,
            "server": server,
            "ledger": ledger.note(),
            "record": {name: value for name, value in record.items() if name != "evaluations"},
        }
        path = self.folder / f"round-{progress.round:06d}.safetensors"
        write_tensors(path, tensors, note)
        sync_folder(self.folder)
        self._hold(path, Ledger.read(note["ledger"]))

    def load(self, warn: Callable[[str], None]) -> Saved | None:
        """The newest checkpoint that is whole; damaged ones are named and passed over."""
        saved: Saved | None = None
        for path in found(self.folder):
            try:
                read = read_checkpoint(path)
            except FedapmError as error:
                warn(f"{error} Trying the one before it.")
                continue
            self._held[path] = read.ledger
            self._held.move_to_end(path, last=False)
            saved = saved or read
        return saved

    def keep(self, client: int) -> str:
        """The oldest version of a client that a checkpoint still means."""
        versions = [ledger.entry(client).accepted for ledger in self._held.values()]
        return FRESH if FRESH in versions or not versions else min(versions)

    def _hold(self, path: Path, ledger: Ledger) -> None:
        # a later round is one of a course that was given up
        for other in [p for p in self._held if p.name >= path.name]:
            del self._held[other]
        self._held[path] = ledger
        while len(self._held) > KEPT:
            self._held.popitem(last=False)
        for old in found(self.folder):
            if old not in self._held:
                old.unlink(missing_ok=True)
        if self.contributions is not None:
            entries = [entry for held in self._held.values() for entry in held.entries.values()]
            self.contributions.keep(entry.contribution for entry in entries if entry.contribution != NONE)


def read_checkpoint(path: Path) -> Saved:
    """A checkpoint, or one line that says why it is none."""
    stored, about = read_tensors(path)
    try:
        server = State(**restore("server", {n: t.clone() for n, t in stored.items()}, about["server"]))
        ledger = Ledger.read(about["ledger"])
        record: dict[str, Any] = dict(about["record"])
        progress = Progress(int(about["round"]), server, ledger, int(about["bytes_up"]), int(about["bytes_down"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FedapmError(f"{path} is not a checkpoint of a run on Flower ({error}).") from None
    return Saved(progress, ledger, record)
