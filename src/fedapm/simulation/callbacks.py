"""Callbacks that write a run down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapm.core.record import RoundRecord
from fedapm.errors import FedapmError
from fedapm.runs.layout import ROUNDS, TIMINGS
from fedapm.runs.records import JsonLines, chained, write_info
from fedapm.simulation.engines.base import Engine
from fedapm.simulation.loop import Callback
from fedapm.simulation.state import RunState
from fedapm.simulation.workers import processor_seconds


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
        self._size: int | None = None
        self._computed = processor_seconds()

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Add a line to both files."""
        self._check_untouched()
        self._size = self.rounds.append(record)
        now = processor_seconds()
        computed, self._computed = now - self._computed, now
        self.timings.append(
            {"round": state.round, "seconds": round(seconds, 6), "processor_seconds": round(computed, 6)}
        )

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Write the last line again."""
        del state, seconds
        self._check_untouched()
        self.rounds.amend(record)
        self._size = self.rounds.size

    def on_run_end(self, state: RunState, status: str) -> None:
        """Say how it ended; complete it is only when its models are written too."""
        if status != "complete":
            self.finish(state, status)

    def finish(self, state: RunState, status: str) -> None:
        """Write the final status."""
        if status == "complete":
            self._check_untouched()
        write_info(self.folder, self.info | state.info(status))

    def _check_untouched(self) -> None:
        """Refuse to go on with records that somebody else changed: the run would end without all of them."""
        if self._size is not None and self.rounds.size != self._size:
            raise FedapmError(
                f"{self.rounds.path} was changed or removed while the run was under way; start again in another folder."
            )


class Checkpointer(Callback):
    """Saves the run every so many rounds and whenever it stops.

    Args:
        engine: What knows the clients' states.
        folder: Where checkpoints lie.
        every: Rounds between checkpoints; 0 saves only when the run stops.
        last: The last round, which is always saved.
        records: The records of the rounds there are already.
    """

    def __init__(
        self, engine: Engine, folder: Path, every: int, last: int, records: Sequence[RoundRecord] = ()
    ) -> None:
        self.engine, self.folder, self.every, self.last = engine, folder, every, last
        self._saved: int | None = None
        self._record: RoundRecord | None = records[-1] if records else None
        self._digest = chained("", records)

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Save in the rounds it is due."""
        del seconds
        self._record, self._digest = record, chained(self._digest, [record])
        if state.round == self.last or (self.every and state.round % self.every == 0):
            self._save(state, record)

    def on_run_end(self, state: RunState, status: str) -> None:
        """Save where the run stands, unless some of it was lost: then older checkpoints are worth more."""
        del status
        # before the first record there is nothing to save, and resuming would miss that record
        if self._record is not None and self._saved != state.round and self.engine.can_save:
            self._save(state, self._record)

    def _save(self, state: RunState, record: RoundRecord) -> None:
        self.engine.save(self.folder, replace(state, records=self._digest), record)
        self._saved = state.round
