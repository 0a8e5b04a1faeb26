"""Observers that write a run down and show how it goes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedapm.core.record import RoundRecord
from fedapm.runs.records import ROUNDS, TIMINGS, JsonLines, write_info
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

    def on_run_end(self, state: RunState, status: str) -> None:
        """Say how it ended; complete it is only when its models are written too."""
        if status != "complete":
            self.finish(state, status)

    def finish(self, state: RunState, status: str) -> None:
        """Write the final status."""
        write_info(self.folder, self.info | {"status": status, "finished": state.round})


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


class ProgressDisplay(Callback):
    """Shows a run on the terminal: a bar where there is one, a plain line now and then where there is not."""

    LINES = 10

    def __init__(self, label: str, rounds: int, console: Console | None = None) -> None:
        self.label, self.rounds = label, rounds
        self.console = console or Console(file=sys.stderr)
        self._bar: Bar | None = None
        self._update: Callable[[int, str], None] = self._line
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[score]}"),
            )
            self._bar = Bar(*columns, TimeRemainingColumn(), console=self.console)
            self._bar.start()
            task = self._bar.add_task(label, total=rounds, score="")
            bar = self._bar
            self._update = lambda done, score: bar.update(task, completed=done, score=score)

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Show where the run stands."""
        del seconds
        self._update(state.round, _score(record))

    def on_run_end(self, state: RunState, status: str) -> None:
        """Leave the terminal as it was."""
        del state, status
        if self._bar is not None:
            self._bar.stop()

    def _line(self, done: int, score: str) -> None:
        if done % max(1, self.rounds // self.LINES) == 0 or done == self.rounds:
            self.console.print(f"{self.label}: round {done}/{self.rounds}{score and '  ' + score}", highlight=False)


def _score(record: RoundRecord) -> str:
    evaluations = record["evaluations"]
    if not evaluations:
        return ""
    first = next(iter(evaluations.values()))
    name = "accuracy" if "accuracy" in first else "train_loss"
    return f"{name.replace('_', ' ')} {first[name]['mean']:.3f}" if name in first else ""
