"""A search on the terminal: how far it is, and what it found."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedapm.tuning.method_search import MethodSearch
from fedapm.tuning.options import Options
from fedapm.tuning.results import SearchResult
from fedapm.tuning.study import Row


class SearchProgress:
    """Follows the trials: a bar a method where there is a terminal, a plain line a trial where there is not."""

    def __init__(
        self, subjects: Sequence[MethodSearch], options: Options, shown: bool, console: Console | None = None
    ) -> None:
        self.options, self.shown = options, shown
        self.console = console or Console(file=sys.stderr)
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if shown and self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[best]}"),
            )
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console)
            for subject in subjects:
                self._tasks[subject.name] = self._bar.add_task(subject.label, total=subject.budget, best="")

    def __enter__(self) -> SearchProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, subject: MethodSearch, rows: Sequence[Row], ended: Row | None = None) -> None:
        """Show a method's trials so far, of which one has just ended."""
        values = [row.value for row in rows if row.state == "complete" and row.value is not None]
        best = f"best {self.options.metric.replace('_', ' ')} {self.options.text(max(values))}" if values else ""
        done = sum(row.state != "running" for row in rows)
        if self._bar is not None:
            self._bar.update(self._tasks[subject.name], completed=done, best=best)
        elif self.shown and ended is not None:
            how = self.options.text(ended.value) if ended.state == "complete" else ended.state
            line = f"{subject.label}: {done} of {subject.budget} trials; trial {ended.number}: {how}"
            self.console.print(f"{line}{best and '; ' + best}", highlight=False, markup=False, soft_wrap=True)


def table(found: Sequence[SearchResult], options: Options) -> Table:
    """One line a method."""
    metric = options.metric.replace("test_", "").replace("_", " ")
    made = Table(
        title=f"Validation {metric} (client mean, {options.select} round)",
        caption="chosen on validation data; no test data was used",
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    made.add_column("method", no_wrap=True)
    for column in ("trials", "pruned", "diverged", "best", "before"):
        made.add_column(column, justify="right", no_wrap=True)
    made.add_column("settings", overflow="fold")
    for one in found:
        settings = ", ".join(f"{setting} {_short(value)}" for setting, value in one.settings.items())
        made.add_row(
            one.label,
            *(str(count) for count in (one.trials, one.pruned, one.diverged)),
            options.text(one.best),
            options.text(one.default),
            settings or ("every trial diverged" if one.best is None else "as before"),
        )
    return made


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
