"""A search of the split on the terminal: a bar over the rounds of all runs, elsewhere a line for each run."""

from __future__ import annotations

from types import TracebackType

from fedapm.core.record import RoundRecord
from fedapm.loggers.console import ProgressDisplay
from fedapm.simulation.loop import Callback
from fedapm.simulation.state import RunState

TITLE = "split search"


class SearchDisplay:
    """How far a search is. A context manager.

    Args:
        total: The rounds of all runs together.
        enabled: Whether anything is printed.
    """

    def __init__(self, total: int, enabled: bool) -> None:
        self.total, self.done = total, 0
        self._bar = ProgressDisplay() if enabled else None

    def __enter__(self) -> SearchDisplay:
        if self._bar is not None:
            self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)

    def show(self, name: str, done: int, line: str | None = None) -> None:
        """Show that so many rounds are done.

        Args:
            name: What is trained, or was.
            done: Rounds of all runs together.
            line: What to print where there is no terminal.
        """
        self.done = min(done, self.total)
        if self._bar is not None:
            self._bar.update(TITLE, self.done, self.total, name, line and f"{TITLE}: {line}")


class FollowRounds(Callback):
    """Counts the rounds of a run.

    Args:
        display: Where they are shown.
        name: What is trained.
    """

    def __init__(self, display: SearchDisplay, name: str) -> None:
        self.display, self.name = display, name

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Count a round."""
        del record, seconds
        if state.round:
            self.display.show(self.name, self.display.done + 1)
