"""Following long work on the terminal: a bar where there is one, a plain line now and then where there is not."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

SECONDS = 10.0
"""Between two plain lines."""


class Following:
    """Shows how far some work is; called with what is done, how much of it, of how much (0 where unknown)."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last: dict[str, float] = {}
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console)

    def __enter__(self) -> Following:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show a state of work."""
        if self._bar is not None:
            if what not in self._tasks:
                self._tasks[what] = self._bar.add_task(what, total=total or None)
            self._bar.update(self._tasks[what], completed=done, total=total or None)
            return
        now = time.monotonic()
        finished = total > 0 and done >= total
        if finished or now - self._last.get(what, -SECONDS) >= SECONDS:
            self._last[what] = float("inf") if finished else now
            of = f" of {total:,}" if total else ""
            self.console.print(f"{what}: {done:,}{of}", highlight=False, markup=False)
