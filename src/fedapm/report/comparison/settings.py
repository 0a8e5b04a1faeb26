"""What was run: data, sizes, parameters, versions and the whole configuration of each method."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedapm.report.comparison.series import Group
from fedapm.report.numbers import fixed, value_range
from fedapm.runs.records import Run


@dataclass(frozen=True)
class Sizes:
    """One property of the clients over all clients and seeds."""

    title: str
    smallest: str
    median: str
    largest: str
    total: str


@dataclass(frozen=True)
class Parameters:
    """How many numbers a model has, as its method divides them."""

    label: str
    model: str
    shared: str
    personal: str
    frozen: str


@dataclass(frozen=True)
class Config:
    """The configuration file of a method's first run."""

    label: str
    seed: int
    others: list[int]
    text: str


def client_sizes(runs: Sequence[Run]) -> list[Sizes]:
    """Smallest, median and largest client; totals are the mean over runs."""
    found = []
    for field, title in (("train", "Training examples"), ("test", "Test examples"), ("classes", "Classes")):
        columns = [[c[field] for c in run.info["clients"] if isinstance(c.get(field), int)] for run in runs]
        values = [value for column in columns for value in column]
        if values:
            total = "" if field == "classes" else fixed(statistics.fmean(sum(column) for column in columns), 0)
            middle = f"{statistics.median(values):,.1f}".removesuffix(".0")
            found.append(Sizes(title, f"{min(values):,}", middle, f"{max(values):,}", total))
    return found


def parameters(groups: Sequence[Group]) -> list[Parameters]:
    """The parameter counts of each method, a range where clients differ."""
    found = []
    for group in groups:
        entries = [run.info.get("parameters") or {} for run in group.runs]
        models = sorted({str(run.info.get("model") or "–") for run in group.runs})
        found.append(
            Parameters(
                group.label,
                ", ".join(models),
                *(_count(entries, field) for field in ("shared", "personal", "frozen")),
            )
        )
    return found


def configs(groups: Sequence[Group]) -> list[Config]:
    """One configuration for each method that left one."""
    found = []
    for group in groups:
        first, *others = group.every_run
        if first.config.strip():
            found.append(Config(group.label, first.seed, [run.seed for run in others], first.config.strip()))
    return found


def versions(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What the runs ran on; more than one value where they differ."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        entries: dict[str, Any] = {"fedapm": run.info.get("fedapm")} | (run.info.get("environment") or {})
        for name, value in entries.items():
            if value is not None:
                found.setdefault(str(name), {})[str(value)] = None
    return [(name, ", ".join(sorted(values))) for name, values in found.items()]


def _count(entries: Sequence[dict[str, Any]], field: str) -> str:
    values: list[int] = []
    for entry in entries:
        value = entry.get(field)
        values += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)]
    return value_range(values) if values else "–"
