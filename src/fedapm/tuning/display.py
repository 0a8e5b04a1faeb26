"""A search on the terminal: its progress, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedapm.loggers.console import stderr
from fedapm.tuning.method_search import MethodSearch
from fedapm.tuning.options import Options
from fedapm.tuning.results import SearchResult
from fedapm.tuning.study import Row


class SearchProgress:
    """The progress of a search: a bar for each method on a terminal, elsewhere a plain line for each trial.

    Args:
        searches: The methods that are searched.
        options: How the search is done.
        enabled: Whether anything is printed.
    """

    def __init__(self, searches: Sequence[MethodSearch], options: Options, enabled: bool) -> None:
        self.options, self.enabled, self.console = options, enabled, stderr()
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if enabled and self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[best]}"),
            )
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console)
            for search in searches:
                self._tasks[search.name] = self._bar.add_task(search.label, total=search.budget, best="")

    def __enter__(self) -> SearchProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, search: MethodSearch, rows: Sequence[Row], ended: Row | None = None) -> None:
        """Display a method's trials so far, of which one may have just ended."""
        values = [row.value for row in rows if row.state == "complete" and row.value is not None]
        best = f"best {self.options.metric.replace('_', ' ')} {self.options.text(max(values))}" if values else ""
        done = sum(row.state != "running" for row in rows)
        if self._bar is not None:
            self._bar.update(self._tasks[search.name], completed=done, best=best)
        elif self.enabled and ended is not None:
            result = self.options.text(ended.value) if ended.state == "complete" else ended.state
            line = f"{search.label}: {done} of {search.budget} trials; trial {ended.number}: {result}"
            self.console.print(f"{line}{best and '; ' + best}", highlight=False, markup=False, soft_wrap=True)


def results_table(results: Sequence[SearchResult], options: Options) -> Table:
    """The results of a search, one row for each method."""
    metric = options.metric.replace("test_", "").replace("_", " ")
    table = Table(
        title=f"Validation {metric} (client mean, {options.select} round)",
        caption="chosen on validation data; no test data was used",
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True)
    for column in ("trials", "pruned", "diverged", "best", "before"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("settings", overflow="fold")
    for result in results:
        settings = ", ".join(f"{setting} {_short(value)}" for setting, value in result.settings.items())
        table.add_row(
            result.label,
            *(str(count) for count in (result.trials, result.pruned, result.diverged)),
            options.text(result.best),
            options.text(result.default),
            settings or ("every trial diverged" if result.best is None else "as before"),
        )
    return table


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
