"""Sweep: the same experiment at several values of one setting or more, each run in a folder of its own."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.errors import Diverged, FedapmError
from fedapm.experiments import side_by_side
from fedapm.experiments.compare import plans, run_folder
from fedapm.experiments.run import execute
from fedapm.experiments.settings import Experiment
from fedapm.experiments.side_by_side import Demand, Materials, run_side_by_side, runs_at_once
from fedapm.experiments.vary import Axis, shown_value, value_text
from fedapm.loggers.series import Series
from fedapm.runs.files import read_json, write_json
from fedapm.runs.folder import is_done, locked
from fedapm.runs.layout import SWEEP_INFO
from fedapm.simulation.spec import CallbackFactory

logger = logging.getLogger(__name__)
MANY = 100
"""Runs from which on a sweep is likely to be larger than it was meant to be."""


@dataclass(frozen=True)
class Member:
    """One run of a sweep, and the values at which it stands; a setting its method does not have is not among them."""

    settings: Experiment
    values: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """Where it lies below the sweep's folder."""
        return self.place(Path())

    def place(self, out: Path) -> Path:
        """Where it lies in a sweep: a folder for each value, then as in a comparison."""
        parts = [f"{setting}={value_text(value)}" for setting, value in self.values.items()]
        return run_folder(out.joinpath(*parts), self.settings.algorithm.name, self.settings.engine.seed)

    @property
    def title(self) -> str:
        """What to call it while it runs."""
        at = "".join(f"{setting} = {shown_value(value)}, " for setting, value in self.values.items())
        return f"{at}{self.settings.algorithm.label}, seed {self.settings.engine.seed}"


def members(
    axes: Sequence[Axis], methods: Sequence[str], seeds: Sequence[int], *layers: Mapping[str, Any]
) -> list[Member]:
    """Every run of a sweep, checked before the first one starts: all combinations of values, methods and seeds.

    What is varied is the last layer and so wins over a method's own tables too; otherwise it would not vary.
    """
    _check(axes, methods)
    by_folder: dict[Path, Member] = {}
    for combination in itertools.product(*(axis.values for axis in axes)):
        chosen = list(zip(axes, combination, strict=True))
        for settings in plans(methods, seeds, *layers, *(axis.layer(value) for axis, value in chosen)):
            name = settings.algorithm.name
            if settings.engine.count is not None and any(axis.setting == "engine.fraction" for axis in axes):
                raise FedapmError("engine.count is set, so engine.fraction has no effect; vary engine.count instead.")
            member = Member(settings, {axis.setting: value for axis, value in chosen if axis.concerns(name)})
            by_folder.setdefault(member.folder, member)
    _check_distinct(list(by_folder.values()))
    return list(by_folder.values())


def run_all(
    axes: Sequence[Axis],
    runs: Sequence[Member],
    out: Path,
    *,
    progress: bool = True,
    callbacks: Sequence[CallbackFactory] = (),
    workers: int | None = None,
) -> list[Path]:
    """Run what is not finished yet; a run that was cut off goes on, one that diverges does not stop the others.

    Args:
        axes: What is varied.
        runs: The runs.
        out: The folder of the sweep.
        progress: Whether to show how far each run is.
        callbacks: What makes further callbacks of each run.
        workers: How many runs go side by side, as in :func:`fedapm.experiments.compare.run_all`.

    Returns:
        The folder of each run.
    """
    if len(runs) > MANY:
        logger.warning("this sweep has %d runs; Ctrl-C stops it, and the same command goes on from there.", len(runs))
    with locked(out):
        record = _record(axes, runs, out)
        advice = "sweep into another folder"
        done = [is_done(run.place(out), run.settings.tables(), advice, diverged=True) for run in runs]
        left = [position for position, is_there in enumerate(done) if not is_there]
        materials = Materials()
        own_data = len({repr(runs[position].settings.data) for position in left}) > 1
        tried: dict[Path, Demand] = {}
        for run in (runs[position] for position in left):
            # what is wrong with a run is wrong with it in every seed
            if run.folder.parent not in tried:
                plan = materials.plan(run.settings)
                plan.schedule.sampling.size(len(plan.problem))
                tried[run.folder.parent] = Demand.of(plan, own_data=own_data)
        write_json(out / SWEEP_INFO, record)
        asked = 1 if callbacks else workers or runs[0].settings.engine.workers
        at_once = runs_at_once(len(left), asked, tried.values())
        if at_once > 1:
            together = [
                side_by_side.Member(runs[position].settings, runs[position].place(out), runs[position].title)
                for position in left
            ]
            run_side_by_side(together, materials, at_once, progress=progress, whole="sweep")
            left = []
        rounds = [(run.settings.algorithm.name, run.settings.engine.rounds) for run in runs]
        series = Series([(name, 0 if is_there else n) for (name, n), is_there in zip(rounds, done, strict=True)])
        for position in left:
            run, turn = runs[position], series.turn(position)
            logger.info("%s: %s", turn.number, run.title)
            try:
                plan = materials.plan(run.settings)
                execute(plan, run.place(out), resume=True, progress=progress, callbacks=callbacks, turn=turn)
            except Diverged as error:
                logger.warning("%s The sweep goes on without this run.", error)
            series.end(position)
    return [run.place(out) for run in runs]


def _check(axes: Sequence[Axis], methods: Sequence[str]) -> None:
    if not axes:
        raise FedapmError("a sweep needs something to vary, as in --vary algorithm.rho=0.01,0.1.")
    names = [axis.setting for axis in axes]
    for axis in axes:
        if names.count(axis.setting) > 1:
            raise FedapmError(f"{axis.setting} is varied twice; give all its values in one --vary.")
        if not axis.common and not any(axis.concerns(name) for name in methods):
            raise FedapmError(f"{axis.setting} is varied, but {axis.table} is not among the methods of the sweep.")


def _check_distinct(runs: Sequence[Member]) -> None:
    seen: dict[str, Member] = {}
    for run in runs:
        other = seen.setdefault(json.dumps(run.settings.tables(), sort_keys=True, default=str), run)
        if other is not run:
            raise FedapmError(f"{other.folder} and {run.folder} would be the same run; vary something that differs.")


def _record(axes: Sequence[Axis], runs: Sequence[Member], out: Path) -> dict[str, Any]:
    """What was varied and where each run lies; a sweep with more values, methods or seeds is added to what is there."""
    vary = {axis.setting: list(axis.values) for axis in axes}
    rows = {run.folder.as_posix(): dict(run.values) for run in runs}
    if (out / SWEEP_INFO).is_file():
        before = read_json(out / SWEEP_INFO)
        if not isinstance(before.get("vary"), dict) or not isinstance(before.get("runs"), dict):
            raise FedapmError(f"{out / SWEEP_INFO} is not the record of a sweep; use another folder.")
        if list(before["vary"]) != list(vary):
            raise FedapmError(
                f"{out} holds a sweep over {', '.join(before['vary'])}, not over {', '.join(vary)}; use another folder."
            )
        vary = {name: _united(before["vary"][name], values) for name, values in vary.items()}
        rows = before["runs"] | rows
    return {"vary": vary, "runs": rows}


def _united(before: Any, values: list[Any]) -> list[Any]:
    by_text = {value_text(value): value for value in [*(before if isinstance(before, list) else []), *values]}
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in by_text.values())
    return sorted(by_text.values()) if numbers else list(by_text.values())
