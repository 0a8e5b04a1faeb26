"""Runs by method: the seeds of one method are one series, each evaluated model a view of it."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from fedapm.report.evaluated_on import validation_share
from fedapm.report.numbers import finite
from fedapm.runs.records import Run

Key = TypeVar("Key", bound=Hashable)

ALONE = "local"
"""The id of the method in which every client trains by itself."""


@dataclass(frozen=True)
class Group:
    """All runs of one method.

    A mean over seeds that stopped at different rounds means nothing, so as soon as one run finished, those that
    did not are left out of every number; the report names them.
    """

    method: str
    label: str
    every_run: tuple[Run, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that count: the complete ones, or all of them where none is."""
        return tuple(r for r in self.every_run if r.complete) or self.every_run

    @property
    def left_out(self) -> tuple[Run, ...]:
        """The runs that do not count."""
        counted = {run.path for run in self.runs}
        return tuple(run for run in self.every_run if run.path not in counted)

    @property
    def complete(self) -> bool:
        """Whether every run finished; a method with only its finished seeds looks too good."""
        return all(run.complete for run in self.every_run)

    @property
    def views(self) -> list[str]:
        """The models evaluated, in the order in which the runs name them."""
        return list(dict.fromkeys(v for run in self.runs for row in run.evaluated for v in row["evaluations"]))

    @property
    def sends_nothing(self) -> bool:
        """Whether no byte ever went between clients and server."""
        return all(sent_bytes(row) == 0 for run in self.runs for row in run.rounds)


@dataclass(frozen=True)
class Series:
    """One row of the report: one model (view) of one method."""

    group: Group
    view: str

    @property
    def name(self) -> str:
        """What to call it: the method, and the view where the method has several."""
        return f"{self.group.label}-{self.view}" if len(self.group.views) > 1 else self.group.label

    @property
    def alone(self) -> bool:
        """Whether this is the method in which clients train by themselves."""
        return self.group.method == ALONE

    def evaluations(self, run: Run) -> list[tuple[int, dict[str, Any]]]:
        """The rounds of a run in which this model was evaluated, with what came out."""
        return [(r["round"], r["evaluations"][self.view]) for r in run.evaluated if r["evaluations"].get(self.view)]

    def last(self, run: Run) -> dict[str, Any]:
        """The last evaluation of this model in a run; empty where there is none."""
        evaluations = self.evaluations(run)
        return evaluations[-1][1] if evaluations else {}


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group the runs by method, in the order of the labels.

    Two runs of a method with the same seed are not repetitions of each other (somebody tried two
    settings), so they become methods of their own, named after their folders.
    """
    groups = [
        Group(method, label, tuple(sorted(members, key=lambda run: run.seed)))
        for (method, label), members in _by(runs, lambda r: (str(r.info["method"]), tidy(r.label))).items()
    ]
    base = Path(os.path.commonpath([run.path.absolute() for run in runs])) if runs else Path()
    groups = [part for group in groups for part in _split_repeated(group, base)]
    uses = Counter(group.label for group in groups)
    groups = [replace(g, label=f"{g.label} ({g.method})") if uses[g.label] > 1 else g for g in groups]
    return sorted(groups, key=lambda g: (g.label.casefold(), g.label, g.method))


def all_series(groups: Sequence[Group]) -> list[Series]:
    """Every model of every method."""
    return [Series(group, view) for group in groups for view in group.views]


def same_data(runs: Sequence[Run]) -> bool:
    """Whether all runs of a seed saw the same clients and were evaluated alike; without that nothing compares."""
    if len({run.info.get("data") for run in runs}) > 1 or len({validation_share(run) for run in runs}) > 1:
        return False
    for members in _by(runs, lambda run: run.seed).values():
        if any(run.info["clients"] != members[0].info["clients"] for run in members):
            return False
    return True


def sent_bytes(row: dict[str, Any]) -> float:
    """What clients and server sent to each other up to and including a round."""
    return (finite(row.get("total_bytes_up")) or 0.0) + (finite(row.get("total_bytes_down")) or 0.0)


def score(evaluation: dict[str, Any], metric: str, statistic: str = "mean") -> float | None:
    """One number of an evaluation, or None where it does not exist."""
    entry = evaluation.get(metric)
    return finite(entry.get(statistic)) if isinstance(entry, dict) else None


def best_score(series: Series, run: Run, metric: str, higher_is_better: bool = True) -> float | None:
    """The best mean over clients in any evaluated round of a run, None where no round has one."""
    scores = [score(evaluation, metric) for _, evaluation in series.evaluations(run)]
    return (max if higher_is_better else min)((v for v in scores if v is not None), default=None)


def client_scores(evaluation: dict[str, Any], metric: str) -> list[float | None]:
    """One number for each client, None where a client has none."""
    return [finite(value) for value in (evaluation.get("per_client") or {}).get(metric) or []]


def tidy(text: str) -> str:
    """A name on one line."""
    return " ".join(str(text).split())


def _split_repeated(group: Group, base: Path) -> list[Group]:
    parts = {base: list(group.every_run)}
    for folder in (lambda run: run.path.absolute().parent, lambda run: run.path.absolute()):
        if all(len({run.seed for run in members}) == len(members) for members in parts.values()):
            break
        parts = _by(group.every_run, folder)
    if len(parts) == 1:
        return [group]
    names = _folder_names([Path(os.path.relpath(path, base)).as_posix() for path in parts])
    return [
        replace(group, label=f"{group.label} ({name})", every_run=tuple(members))
        for name, members in zip(names, parts.values(), strict=True)
    ]


def _folder_names(paths: Sequence[str]) -> list[str]:
    """Folders by their names, without the digest that a sweep puts behind a long value, where that is enough."""
    plain = [re.sub(r"~[0-9a-f]{6}(?=/|$)", "", path) for path in paths]
    return plain if len(set(plain)) == len(plain) else list(paths)


def _by(runs: Sequence[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    groups: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return groups
