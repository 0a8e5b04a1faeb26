"""A sweep, read: which runs stand at which values of what was varied, and what they came to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from fedapm.errors import FedapmError
from fedapm.report.comparison.series import Group, Series, tidy
from fedapm.report.comparison.summary import SummaryRow, summary_table
from fedapm.report.numbers import tick
from fedapm.runs.files import read_json, write_atomic
from fedapm.runs.layout import REPORT, SWEEP_INFO
from fedapm.runs.records import Run, is_run, load_run

State = Literal["complete", "partly", "diverged", "unfinished"]


@dataclass(frozen=True)
class Point:
    """The seeds of one method at one combination of values; a setting the method does not have is not among them."""

    values: Mapping[str, Any]
    group: Group
    rows: Sequence[SummaryRow]
    """One for each evaluated model."""

    @property
    def state(self) -> State:
        """How its runs ended: all complete, some of them, none and one diverged, none and none did."""
        complete = [run.complete for run in self.group.every_run]
        if any(complete):
            return "complete" if all(complete) else "partly"
        diverged = any(run.info.get("status") == "diverged" for run in self.group.every_run)
        return "diverged" if diverged else "unfinished"

    @property
    def counts(self) -> bool:
        """Whether it has a result to speak of."""
        return self.state in ("complete", "partly") and bool(self.rows)

    @property
    def place(self) -> str:
        """Its values in words."""
        return ", ".join(f"{setting} = {written(value)}" for setting, value in self.values.items())

    @property
    def named(self) -> Group:
        """The same runs under a name that says where they stand."""
        label = f"{self.group.label}, {self.place}" if self.values else self.group.label
        return Group(self.group.method, label, self.group.every_run)

    def series(self) -> list[Series]:
        """Its models, in the order of the rows."""
        views = {view: Series(self.group, view) for view in self.group.views}
        return [views[row.view] for row in self.rows]


@dataclass(frozen=True)
class Model:
    """One evaluated model of one method, with all points it has a row at."""

    name: str
    first: bool
    """Whether it is its method's first; what belongs to the method and not to a model goes with that one."""
    results: Sequence[tuple[Point, SummaryRow]]


@dataclass(frozen=True)
class Sweep:
    """What was varied, every point in the order of methods and values, and the runs that are not there yet."""

    axes: Mapping[str, Sequence[Any]]
    points: Sequence[Point]
    missing: Sequence[str]

    @property
    def runs(self) -> list[Run]:
        """Every run."""
        return [run for point in self.points for run in point.group.every_run]

    @property
    def rows(self) -> list[SummaryRow]:
        """Every model at every point."""
        return [row for point in self.points for row in point.rows]

    @property
    def methods(self) -> list[Group]:
        """All runs of each method, at any value."""
        runs: dict[tuple[str, str], list[Run]] = {}
        for point in self.points:
            runs.setdefault((point.group.method, point.group.label), []).extend(point.group.every_run)
        return [Group(method, label, tuple(members)) for (method, label), members in runs.items()]

    @property
    def models(self) -> list[Model]:
        """Everything that was evaluated, in the order of the points."""
        results: dict[str, list[tuple[Point, SummaryRow]]] = {}
        firsts: dict[str, str] = {}
        for point in self.points:
            for row in point.rows:
                results.setdefault(row.label, []).append((point, row))
                firsts.setdefault(point.group.label, row.label)
        return [Model(name, name in firsts.values(), members) for name, members in results.items()]

    def as_rows(self) -> list[dict[str, Any]]:
        """Every number as plain JSON values, one row for each model of each point."""
        rows: list[dict[str, Any]] = []
        for point in self.points:
            place = {"values": dict(point.values), "state": point.state}
            empty = {"label": point.group.label, "method": point.group.method, "seeds": []}
            rows += [place | row.as_dict() for row in point.rows] or [place | empty]
        return rows


def read_sweep(folder: Path) -> Sweep:
    """Read the sweep in a folder."""
    record = read_json(folder / SWEEP_INFO)
    vary, places = record.get("vary"), record.get("runs")
    if not isinstance(vary, dict) or not isinstance(places, dict) or not vary:
        raise FedapmError(f"{folder / SWEEP_INFO} is not the record of a sweep.")
    axes = {str(name): _ordered(values) for name, values in vary.items()}
    members: dict[tuple[str, str, str], list[tuple[Run, dict[str, Any]]]] = {}
    missing = []
    for place, values in places.items():
        relative = PurePosixPath(place)
        if relative.is_absolute() or ".." in relative.parts or not isinstance(values, dict):
            raise FedapmError(f"{folder / SWEEP_INFO} names a run {place!r} that is not in its folder.")
        if not is_run(folder / relative):
            missing.append(place)
            continue
        run = load_run(folder / relative)
        key = (str(run.info["method"]), tidy(run.label), json.dumps(values, sort_keys=True))
        members.setdefault(key, []).append((run, values))
    if not members:
        raise FedapmError(f"{folder} holds no run of its sweep yet.")
    points = [_point(method, label, placed) for (method, label, _), placed in members.items()]
    points.sort(key=lambda point: (point.group.label.casefold(), point.group.method, _place_in(axes, point.values)))
    return Sweep(axes, points, missing)


def write_sweep_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of the sweep in a folder as one HTML file, and return where it is."""
    from fedapm.report.sweep.page import render_sweep

    path = out if out is not None else folder / REPORT
    write_atomic(path, render_sweep(read_sweep(folder)))
    return path


def written(value: Any) -> str:
    """A value as the page shows it."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return " + ".join(tidy(part) for part in value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return json.dumps(value, ensure_ascii=False)
    return tidy(value) if isinstance(value, str) else tick(float(value))


def is_numeric(values: Sequence[Any]) -> bool:
    """Whether all values are numbers, so that there is an order and a distance between them."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _point(method: str, label: str, members: Sequence[tuple[Run, dict[str, Any]]]) -> Point:
    runs = sorted((run for run, _ in members), key=lambda run: run.seed)
    rows = summary_table(runs)
    views = Group(method, label, tuple(runs)).views
    rows.sort(key=lambda row: views.index(row.view))
    return Point(members[0][1], Group(method, label, tuple(runs)), rows)


def _ordered(values: Any) -> list[Any]:
    ordered = list(values) if isinstance(values, list) else [values]
    return sorted(ordered) if is_numeric(ordered) else ordered


def _place_in(axes: Mapping[str, Sequence[Any]], values: Mapping[str, Any]) -> list[int]:
    """Where a point stands on each axis; before the first value where its method does not have the setting."""
    keys = {name: [json.dumps(value) for value in known] for name, known in axes.items()}
    own = {name: json.dumps(value) for name, value in values.items()}
    return [known.index(own[name]) if own.get(name) in known else -1 for name, known in keys.items()]
