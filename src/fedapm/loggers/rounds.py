"""How far a run is, round by round, on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedapm.loggers.console import ProgressDisplay
from fedapm.simulation.loop import Callback

if TYPE_CHECKING:
    from rich.console import Console

    from fedapm.core.record import RoundRecord
    from fedapm.loggers.series import Turn
    from fedapm.simulation.state import RunState

LINES = 10
"""Plain lines that the rounds of a run come to where there is no terminal."""


class RoundProgress(Callback):
    """Callback that shows how far a run is.

    Args:
        label: What to call the run.
        rounds: How many rounds it has.
        console: Where to print; stderr if not given.
        turn: Its place in a series of runs, whose time left is shown, too.
    """

    def __init__(self, label: str, rounds: int, console: Console | None = None, turn: Turn | None = None) -> None:
        self._label, self._rounds, self._turn = label, rounds, turn
        self._all = f"all {len(turn.series)} runs" if turn is not None else ""
        self._display = ProgressDisplay(console)
        self._display.__enter__()
        self._display.update(label, 0, rounds)
        self._show_all()

    def show(self, record: Mapping[str, Any]) -> None:
        """Show where the run stands after a round."""
        done = int(record["round"])
        score = "  ".join(part for part in (score_text(record), spending_text(record)) if part)
        due = done % max(1, self._rounds // LINES) == 0 or done == self._rounds
        line = f"{self._label}: round {done}/{self._rounds}{score and '  ' + score}"
        if self._turn is not None:
            self._turn.advance(self._rounds - done)
            line += f"  {self._turn.time_left} left in all"
        self._display.update(self._label, done, self._rounds, score, line if due else None)
        self._show_all()

    def note(self, text: str) -> None:
        """Print a line above the progress."""
        self._display.print(f"{self._label}: {text}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._display.drop(self._all)
        self._display.__exit__(None, None, None)

    def _show_all(self) -> None:
        if self._turn is not None:
            done, total = self._turn.position, len(self._turn.series)
            self._display.update(self._all, done, total, left=self._turn.time_left)

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Show where the run stands."""
        del state, seconds
        self.show(record)

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Show the score after the closing phase."""
        del state, seconds
        score = score_text(record)
        self._display.update(
            self._label, self._rounds, self._rounds, f"closed: {score}", f"{self._label}: closing phase  {score}"
        )

    def on_run_end(self, state: RunState, status: str) -> None:
        """Leave the terminal as it was."""
        del state, status
        self.close()


def score_text(record: Mapping[str, Any]) -> str:
    """The client mean that says most about a round; empty where nothing was evaluated."""
    if not record["evaluations"]:
        return ""
    first = next(iter(record["evaluations"].values()))
    name = "accuracy" if "accuracy" in first else "train_loss"
    return f"{name.replace('_', ' ')} {first[name]['mean']:.3f}" if name in first else ""


def spending_text(record: Mapping[str, Any]) -> str:
    """What a private run has spent; empty where there is nothing to say."""
    spent, exhausted = (record.get("server") or {}).get("epsilon"), len(record.get("abstaining") or ())
    if spent is not None:
        return f"ε {spent:.2f}"
    return f"{exhausted} privacy budget{'s' * (exhausted > 1)} spent" if exhausted else ""
