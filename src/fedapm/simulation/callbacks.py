"""Callbacks that write a run down."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fedapm.runs.layout import ROUNDS, TIMINGS
from fedapm.runs.records import JsonLines, write_info
from fedapm.simulation.engines.base import Engine
from fedapm.simulation.loop import Progress, Record

logger = logging.getLogger(__name__)


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
    """Logs what an engine has to say, each thing once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._logged: set[str] = set()

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        """Log what is new."""
        del progress, record, seconds
        for text in self.engine.remarks:
            if text not in self._logged:
                self._logged.add(text)
                logger.info("%s", text)

    def on_run_end(self, progress: Progress, status: str) -> None:
        """Nothing to close."""
