"""What was run: data, parameters, versions and configuration."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from fedapm.report.numbers import fixed
from fedapm.report.page import Section
from fedapm.report.results import Results
from fedapm.report.settings import without_places
from fedapm.runs.records import Run

SIZES = {"train": "Training examples", "test": "Test examples", "classes": "Classes"}


def section(results: Results, sweep: bool = False) -> Section:
    """The section.

    Args:
        results: The runs.
        sweep: Whether the runs of a method differ in more than the seed, so that one of them stands for all.
    """
    context = {
        "sizes": [(results.reword(title), *cells) for title, *cells in _client_sizes(results.runs)],
        "versions": _versions(results.every_run),
        "configured": [group for group in results.groups if group.every_run[0].config.strip()],
        "sampled": any(run.population > len(run.info["clients"]) for run in results.runs),
        "sweep": sweep,
        "shown": without_places,
    }
    return Section("settings", "Settings", "settings.html.j2", context)


def _client_sizes(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """The smallest, median and largest client, and the total as a mean over runs."""
    for field, title in SIZES.items():
        columns = [[c[field] for c in run.info["clients"] if isinstance(c.get(field), int)] for run in runs]
        values = [value for column in columns for value in column]
        if values:
            total = "" if field == "classes" else fixed(statistics.fmean(sum(column) for column in columns), 0)
            median = f"{statistics.median(values):,.1f}".removesuffix(".0")
            yield title, f"{min(values):,}", median, f"{max(values):,}", total


def _versions(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What the runs ran on; more than one value where they differ."""
    versions: dict[str, set[str]] = {}
    for run in runs:
        entries: dict[str, Any] = {"fedapm": run.info.get("fedapm")} | (run.info.get("environment") or {})
        for name, value in entries.items():
            if value is not None:
                versions.setdefault(str(name), set()).add(str(value))
    return [(name, ", ".join(sorted(values))) for name, values in versions.items()]
