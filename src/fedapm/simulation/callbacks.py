"""Observers that write a run down and show how it goes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedapm.runs.layout import ROUNDS, TIMINGS
from fedapm.runs.records import JsonLines, write_info
from fedapm.simulation.engines.base import Engine
from fedapm.simulation.loop import Progress, Record


class Memory:
    """Keeps the records of a run for whoever started it."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        """Keep the record."""
        del progress, seconds
        self.records.append(record)

    def on_run_end(self, progress: Progress, status: str) -> None:
        """Nothing to close."""


class RecordWriter:
    """Writes rounds, timings and the run's status into its folder."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        self.folder, self.info = folder, info
        self.rounds, self.timings = JsonLines(folder / ROUNDS), JsonLines(folder / TIMINGS)
        write_info(folder, info | {"status": "running"})

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        """Add a line to both files."""
        self.rounds.append(record)
        self.timings.append({"round": progress.round, "seconds": round(seconds, 6)})

    def on_run_end(self, progress: Progress, status: str) -> None:
        """Say how it ended; complete it is only when its models are written too."""
        if status != "complete":
            self.finish(progress, status)

    def finish(self, progress: Progress, status: str) -> None:
        """Write the final status."""
        write_info(self.folder, self.info | progress.info(status))


class Remarks:
    """Passes on what an engine has to say, each thing once."""

    def __init__(self, engine: Engine, tell: Callable[[str], None]) -> None:
        self.engine, self.tell = engine, tell
        self._said: set[str] = set()

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        """Pass on what is new."""
        del progress, record, seconds
        for text in self.engine.remarks:
            if text not in self._said:
                self._said.add(text)
                self.tell(text)

    def on_run_end(self, progress: Progress, status: str) -> None:
        """Nothing to close."""


class ProgressDisplay:
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

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        """Show where the run stands."""
        del seconds
        self._update(progress.round, _score(record))

    def on_run_end(self, progress: Progress, status: str) -> None:
        """Leave the terminal as it was."""
        del progress, status
        if self._bar is not None:
            self._bar.stop()

    def _line(self, done: int, score: str) -> None:
        if done % max(1, self.rounds // self.LINES) == 0 or done == self.rounds:
            self.console.print(f"{self.label}: round {done}/{self.rounds}{score and '  ' + score}", highlight=False)


def _score(record: Record) -> str:
    evaluations = record["evaluations"]
    if not evaluations:
        return ""
    first = next(iter(evaluations.values()))
    name = "accuracy" if "accuracy" in first else "train_loss"
    return f"{name.replace('_', ' ')} {first[name]['mean']:.3f}" if name in first else ""
