"""Callbacks that write a run down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapm.core.record import RoundRecord
from fedapm.runs.layout import ROUNDS, TIMINGS
from fedapm.runs.records import JsonLines, write_info
from fedapm.simulation.engines.base import Engine
from fedapm.simulation.loop import Callback
from fedapm.simulation.state import RunState


class History(Callback):
    """Keeps the records of a run for whoever started it."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Keep the record."""
        del state, seconds
        self.records.append(record)

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Keep it in place of the last one."""
        del state, seconds
        self.records[-1] = record


class RecordWriter(Callback):
    """Writes rounds, timings and the run's status into its folder."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        self.folder, self.info = folder, info
        self.rounds, self.timings = JsonLines(folder / ROUNDS), JsonLines(folder / TIMINGS)
        write_info(folder, info | {"status": "running"})

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Add a line to both files."""
        self.rounds.append(record)
        self.timings.append({"round": state.round, "seconds": round(seconds, 6)})

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Write the last line again."""
        del state, seconds
        self.rounds.amend(record)

    def on_run_end(self, state: RunState, status: str) -> None:
        """Say how it ended; complete it is only when its models are written too."""
        if status != "complete":
            self.finish(state, status)

    def finish(self, state: RunState, status: str) -> None:
        """Write the final status."""
        write_info(self.folder, self.info | state.info(status))


class Checkpointer(Callback):
    """Saves the run every so many rounds and whenever it stops.

    Args:
        engine: What knows the clients' states.
        folder: Where checkpoints lie.
        every: Rounds between checkpoints; 0 saves only when the run stops.
        last: The last round, which is always saved.
    """

    def __init__(self, engine: Engine, folder: Path, every: int, last: int) -> None:
        self.engine, self.folder, self.every, self.last = engine, folder, every, last
        self._saved: int | None = None
        self._record: RoundRecord = {}

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Save in the rounds it is due."""
        del seconds
        self._record = record
        if state.round == self.last or (self.every and state.round % self.every == 0):
            self._save(state)

    def on_run_end(self, state: RunState, status: str) -> None:
        """Save where the run stands, unless some of it was lost: then older checkpoints are worth more."""
        del status
        if self._saved != state.round and self.engine.can_save:
            self._save(state)

    def _save(self, state: RunState) -> None:
        self.engine.save(self.folder, state, self._record)
        self._saved = state.round
