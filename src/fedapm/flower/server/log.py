"""How a run on Flower goes, one line a round: a server has a log and no terminal."""

from __future__ import annotations

import logging

from fedapm.core.record import RoundRecord
from fedapm.loggers.rounds import score_text, spending_text
from fedapm.simulation.loop import Callback
from fedapm.simulation.state import RunState

logger = logging.getLogger(__name__)


class RoundLog(Callback):
    """Logs a line for every round."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """One line."""
        logger.info("round %d/%d: %s (%.1f s)", state.round, self.rounds, summary(record), seconds)

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """One line."""
        del state, seconds
        logger.info("closing phase: %s", score_text(record))

    def on_run_end(self, state: RunState, status: str) -> None:
        """How it ended."""
        logger.info("%s after round %d of %d", status, state.round, self.rounds)


def summary(record: RoundRecord) -> str:
    """A round in a few words: who answered, and how good the models are."""
    asked, dropped = len(record["selected"]), len(record["dropped"])
    parts = [f"{asked - dropped} of {asked} clients"] if asked else ["before training"]
    parts += [text for text in (score_text(record), spending_text(record)) if text]
    return ", ".join(parts)
