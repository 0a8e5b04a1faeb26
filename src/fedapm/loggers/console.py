"""What a person sees on the terminal while something runs: messages and progress, both on stderr."""

from __future__ import annotations

import logging
import math
import time
from functools import cache
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedapm.core.messages import plain_line
from fedapm.loggers.notebook import NotebookBars, in_notebook

SECONDS = 10.0
"""Between two plain lines about other work."""
ROOMY = 110
"""Columns of a terminal from which on bars are wide."""
WIDE, NARROW = 40, 14
"""Columns of a bar."""
RUN_DETAILS = ("fedapm.core", "fedapm.simulation", "fedapm.experiments.run")
"""Loggers of what concerns a single run, such as which engine it has."""


@cache
def stderr() -> Console:
    """The one console for stderr, so that messages are printed above a bar and not into it."""
    return Console(stderr=True)


class ConsoleHandler(logging.Handler):
    """Prints messages as they are; warnings begin with the program's name."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        prefix = "fedapm: " if record.levelno >= logging.WARNING else ""
        try:
            message = prefix + plain_line(record.getMessage())
            stderr().print(message, highlight=False, soft_wrap=True, markup=False, emoji=False)
        except Exception:  # as every handler: what goes wrong in logging is no reason to stop
            self.handleError(record)


def configure(run_details: bool = True) -> None:
    """Show fedapm's messages on the terminal. Programs call this once, libraries never do.

    Args:
        run_details: Whether to show what concerns a single run; a command of many runs has better things to say.
    """
    logger = logging.getLogger("fedapm")
    logger.handlers, logger.propagate = [ConsoleHandler()], False
    logger.setLevel(logging.INFO)
    for name in RUN_DETAILS:
        logging.getLogger(name).setLevel(logging.NOTSET if run_details else logging.WARNING)


class _TimeLeft(TimeRemainingColumn):
    """The time left: what the work itself says, or else what the bar's pace so far comes to."""

    def render(self, task: Task) -> Text:
        """The time left of a bar."""
        left = task.fields.get("left")
        return super().render(task) if left is None else Text(left, style="progress.remaining")


class ProgressDisplay:
    """How far some work is: bars with the time left on a terminal, plain lines now and then elsewhere.

    A context manager. ``update`` moves the bar of a name, ``display(name, done, total)`` does so for work whose steps
    nobody wants to count, such as bytes.

    Args:
        console: Where to print; stderr if not given.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or stderr()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed: dict[str, float] = {}
        self._notebook = NotebookBars() if console is None and in_notebook() else None
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(WIDE if self._console.width >= ROOMY else NARROW),
                TextColumn("{task.fields[count]}", markup=False),
                TextColumn("{task.fields[detail]}", markup=False),
                _TimeLeft(),
                console=self._console,
            )

    def __enter__(self) -> ProgressDisplay:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        if self._notebook is not None:
            self._notebook.close()

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def drop(self, name: str) -> None:
        """Take a bar away that says nothing more."""
        if self._bars is not None and name in self._tasks:
            self._bars.update(self._tasks.pop(name), visible=False)
        if self._notebook is not None:
            self._notebook.drop(name)

    def update(
        self, name: str, done: int, total: int, detail: str = "", line: str | None = None, left: str | None = None
    ) -> None:
        """Show how many steps are done.

        Args:
            name: What is done; each name has a bar of its own, in the order in which they come.
            done: Steps that are done.
            total: Steps there are; 0 where that is unknown.
            detail: A few words behind the bar.
            line: What to print where there is no terminal; None prints nothing.
            left: The time left, where the work knows better than the bar.
        """
        if self._bars is not None or self._notebook is not None:
            self._move(name, done, total, f"{done}/{total}" if total else f"{done}", detail, left)
        elif line is not None:
            self._console.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def __call__(self, name: str, done: int, total: int) -> None:
        """Show how far work is; without a terminal in a line every few seconds and one at the end."""
        if self._bars is not None or self._notebook is not None:
            self._move(name, done, total, f"{done / total:4.0%}" if total else "", "")
            return
        now, finished = time.monotonic(), 0 < total <= done
        last = self._printed.get(name, -math.inf)
        if (finished and last < math.inf) or now - last >= SECONDS:
            self._printed[name] = math.inf if finished else now
            self.update(name, done, total, line=f"{name}: {done:,}{f' of {total:,}' if total else ''}")

    def _move(self, name: str, done: int, total: int, count: str, detail: str, left: str | None = None) -> None:
        if self._notebook is not None:
            self._notebook.update(name, done, total, count, detail, left)
            return
        assert self._bars is not None
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=None, count="", detail="", left=None)
        self._bars.update(self._tasks[name], completed=done, total=total or None, count=count, detail=detail, left=left)
