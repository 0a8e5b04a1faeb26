"""The server's checkpoints. One is written before a round is announced, so a kill never loses an announcement.

A checkpoint holds the server's state, the ledger, and the record of its round as far as it is known; only the
evaluation, which comes with the replies to the next announcement, may be missing from it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fedapm.core.algorithm import State
from fedapm.core.record import RoundRecord
from fedapm.errors import Diverged, FedapmError
from fedapm.flower.server.contributions import NONE, Contributions
from fedapm.flower.server.ledger import Ledger
from fedapm.flower.transport.version import FRESH
from fedapm.runs.files import read_tensors, write_tensors
from fedapm.simulation.engines.base import Engine
from fedapm.simulation.loop import Callback
from fedapm.simulation.state import RunState
from fedapm.simulation.stores.base import flatten, restore
from fedapm.simulation.stores.disk import KEEP_LAST, checkpoint_files
from fedapm.simulation.stores.rows import sync_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A run as a checkpoint has it."""

    state: RunState
    ledger: Ledger
    record: RoundRecord


class SaveBeforeEvaluation(Callback):
    """Writes a checkpoint when a round's result is in place and before the next round is announced."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder

    def on_server_update(self, state: RunState, record: RoundRecord) -> None:
        """Save the round."""
        self.engine.save(self.folder, state, record)


class ServerCheckpoints:
    """Writes checkpoints and knows what they still need of clients and contributions."""

    def __init__(self, contributions: Contributions | None, corrections: Contributions | None = None) -> None:
        self.contributions, self.corrections = contributions, corrections
        self._held: OrderedDict[Path, Ledger] = OrderedDict()

    def save(self, folder: Path, state: RunState, ledger: Ledger, record: RoundRecord) -> None:
        """Write a checkpoint; when this returns it survives a power cut.

        Raises:
            Diverged: If the state is not finite; nothing is written then.
        """
        if not state.server.is_finite():
            raise Diverged(f"round {state.round}: the server's state is not finite; the round before it is kept.")
        for kept in (self.contributions, self.corrections):
            if kept is not None:
                kept.sync()
        tensors, server = flatten("server", state.server)
        note: dict[str, Any] = {
            "round": state.round,
            "bytes_up": state.bytes_up,
            "bytes_down": state.bytes_down,
            "server": server,
            "ledger": ledger.note(),
            "record": {name: value for name, value in record.items() if name != "evaluations"},
        }
        path = folder / f"round-{state.round:06d}.safetensors"
        write_tensors(path, tensors, note)
        sync_folder(folder)
        self._hold(path, Ledger.read(note["ledger"]))

    def load(self, folder: Path) -> Saved | None:
        """The newest checkpoint that is whole; damaged ones are named in a warning and passed over."""
        newest: Saved | None = None
        self._held.clear()
        for path in checkpoint_files(folder):
            try:
                saved = read_checkpoint(path)
            except FedapmError as error:
                logger.warning("%s Trying the one before it.", error)
                continue
            self._held[path] = saved.ledger
            self._held.move_to_end(path, last=False)
            newest = newest or saved
        return newest

    def oldest_version(self, client: int) -> str:
        """The oldest version of a client that a checkpoint still means."""
        versions = [ledger.entry(client).accepted for ledger in self._held.values()]
        return FRESH if FRESH in versions or not versions else min(versions)

    def _hold(self, path: Path, ledger: Ledger) -> None:
        # a later round belongs to a course that was given up
        for other in [p for p in self._held if p.name >= path.name]:
            del self._held[other]
        self._held[path] = ledger
        while len(self._held) > KEEP_LAST:
            self._held.popitem(last=False)
        for old in checkpoint_files(path.parent):
            if old not in self._held:
                old.unlink(missing_ok=True)
        entries = [entry for held in self._held.values() for entry in held.entries.values()]
        if self.contributions is not None:
            self.contributions.keep(entry.contribution for entry in entries if entry.contribution != NONE)
        if self.corrections is not None:
            self.corrections.keep(entry.correction for entry in entries if entry.correction != NONE)


def read_checkpoint(path: Path) -> Saved:
    """A checkpoint, or one line that says why it is none."""
    stored, about = read_tensors(path)
    try:
        server = State(**restore("server", {n: t.clone() for n, t in stored.items()}, about["server"]))
        ledger = Ledger.read(about["ledger"])
        record = cast(RoundRecord, dict(about["record"]))
        state = RunState(int(about["round"]), server, int(about["bytes_up"]), int(about["bytes_down"]))
        if not server.is_finite():
            raise ValueError("its state is not finite")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, FedapmError) as error:
        raise FedapmError(f"{path} is not a checkpoint of a run on Flower ({error}).") from None
    return Saved(state, ledger, record)
