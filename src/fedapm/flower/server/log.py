"""How a run on Flower goes, one line a round: a server has a log and no terminal."""

from __future__ import annotations

from collections.abc import Callable

from fedapm.loggers.console import score_text
from fedapm.simulation.loop import Progress, Record


class RoundLog:
    """Observer that tells of every round."""

    def __init__(self, rounds: int, tell: Callable[[str], None]) -> None:
        self.rounds, self.tell = rounds, tell

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        """One line."""
        self.tell(f"round {progress.round}/{self.rounds}: {summary(record)} ({seconds:.1f} s)")

    def on_run_end(self, progress: Progress, status: str) -> None:
        """How it ended."""
        self.tell(f"{status} after round {progress.round} of {self.rounds}")


def summary(record: Record) -> str:
    """A round in a few words: who answered, and how good the models are."""
    asked, dropped = len(record["selected"]), len(record["dropped"])
    parts = [f"{asked - dropped} of {asked} clients"] if asked else ["before training"]
    if score := score_text(record):
        parts.append(score)
    return ", ".join(parts)
