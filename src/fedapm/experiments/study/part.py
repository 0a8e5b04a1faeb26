"""A part of a study: one case with one cohort. Its split is chosen, its methods are tuned, then compared.

Every step is a command's machinery in a folder of its own: what is there is kept, what was cut off goes on.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedapm.algorithms import FedAPM
from fedapm.data import Federation
from fedapm.experiments import build, compare, sweep
from fedapm.experiments.alike import Alike
from fedapm.experiments.settings import Experiment, Tables
from fedapm.experiments.study.settings import Case
from fedapm.experiments.vary import Axis
from fedapm.report.comparison.page import render
from fedapm.report.split.page import write_split_report
from fedapm.report.study.collect import collect
from fedapm.report.study.lines import write_lines
from fedapm.report.study.sweeps import collect_sweep, write_sweeps
from fedapm.report.sweep.runs import write_sweep_report
from fedapm.runs.files import read_json, write_atomic, write_json
from fedapm.runs.layout import (
    CHECKPOINTS,
    INFO,
    REPORT,
    STUDY_CHOICE,
    STUDY_COMPARE,
    STUDY_SPLIT,
    STUDY_SWEEPS,
    STUDY_TUNE,
    SUMMARY,
    SWEEPS,
    TRIALS,
)
from fedapm.runs.records import find_runs, is_run
from fedapm.tuning.run import SHARE
from fedapm.tuning.split.options import SplitOptions
from fedapm.tuning.split.run import find_split

logger = logging.getLogger(__name__)
CHOSEN, PAPER = "chosen", "paper"
SWEEP_SEEDS = 3


@dataclass(frozen=True)
class Step:
    """Something a part does, and how much of it there is."""

    name: str
    methods: Sequence[str]
    runs: int
    """Of each method."""
    rounds: int
    """Of each run."""
    done: Callable[[], float]
    """The share of it that is there."""
    do: Callable[[], None]


@dataclass(frozen=True)
class Part:
    """One case with one cohort, in a folder."""

    case: Case
    cohort: float
    out: Path
    """The folder of the study."""
    root: Path | None = None
    workers: int | None = None

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.out / self.case.name / f"cohort-{self.cohort:g}"

    @property
    def title(self) -> str:
        """What to call it."""
        return f"{self.case.title}, {100 * self.cohort:g}% of clients a round"

    @property
    def layers(self) -> list[Tables]:
        """The settings of all its runs."""
        return self.case.layers(self.cohort, self.root)

    def check(self) -> None:
        """Refuse what is wrong with the settings of any step; no data is read."""
        self._chooser()
        for split in self.case.groups:
            self._alike(split, ()).check()
        for axis in self._axes:
            self._swept(axis, self._alike(self._swept_split, ()), {})

    @property
    def groups(self) -> dict[str, list[str]]:
        """The methods that are tuned and run together, by split; the paper's is left out where it was chosen."""
        same = self._choice().get("as_paper", False)
        return {split: methods for split, methods in self.case.groups.items() if not (same and split == PAPER)}

    def steps(self) -> Iterator[Step]:
        """What there is to do, in order."""
        case, plan = self.case, self.case.plan
        if CHOSEN in case.groups:
            yield Step(
                "choosing the split", (FedAPM.name,), plan.split_runs, case.rounds, self._split_done, self._choose
            )
        for split, methods in self.groups.items():
            trials = plan.trials * len(plan.tune_seeds)
            folder = self.folder / STUDY_TUNE / split / TRIALS
            yield Step(
                f"tuning ({split})",
                methods,
                trials,
                case.tune_rounds,
                _share_of(folder, "*/*/seed-*", trials * len(methods)),
                self._tuning(split),
            )
        for split, methods in self.groups.items():
            seeds = len(plan.seeds)
            folder = self.folder / STUDY_COMPARE / split
            yield Step(
                f"comparing ({split})",
                methods,
                seeds,
                case.rounds,
                _share_of(folder, "*/seed-*", seeds * len(methods)),
                self._comparing(split),
            )

        for axis in self._axes:
            methods, folder = self.case.plan.swept(axis), self._sweep_folder(axis)
            seeds = len(self._sweep_seeds)
            yield Step(
                f"varying {axis.setting}",
                methods,
                len(axis.values) * seeds,
                case.rounds,
                _share_of(folder, "*/*/seed-*", len(axis.values) * seeds * len(methods)),
                self._sweeping(axis),
            )

    def report(self) -> None:
        """Write the part's lines of the summary and of the sweeps, and its report."""
        folder = self.folder / STUDY_COMPARE
        write_lines(self.folder / SUMMARY, collect(self.folder, self.case.name, self.case.as_dict(), self.cohort))
        write_atomic(folder / REPORT, render(find_runs(folder), self.case.plan.targets))
        if self._axes:
            folders = [self._sweep_folder(axis) for axis in self._axes]
            found = [collect_sweep(path, self.case.name, self.case.title, self.cohort) for path in folders]
            write_sweeps(self.folder / SWEEPS, (line for lines in found for line in lines))

    def experiment(self, method: str) -> Experiment:
        """A run of a method as it is before anything is chosen."""
        return compare.plans([method], self.case.plan.seeds[:1], *self.layers)[0]

    def clients(self) -> Federation:
        """The clients with their test data."""
        return build.federation(self.experiment(self.case.plan.method_names[0]).data)

    def _chooser(self) -> Experiment:
        """The run that the split is searched for."""
        plan = self.case.plan
        layers = [*self.layers, {"data": self.case.choosing}]
        workers = [{"engine": {"workers": self.workers}}] if self.workers else []
        return compare.plans([FedAPM.name], plan.tune_seeds[:1], *layers, *workers)[0]

    def _choice(self) -> dict[str, Any]:
        """What was chosen; empty before that."""
        path = self.folder / STUDY_CHOICE
        return read_json(path) if path.is_file() else {}

    def _split_done(self) -> float:
        return float(bool(self._choice()))

    def _choose(self) -> None:
        if self._choice():
            return
        experiment, folder = self._chooser(), self.folder / STUDY_SPLIT
        data, first, seeds = experiment.data, experiment.engine.seed, self.case.plan.tune_seeds
        clients = build.federation(replace(data, validation=0.0))
        found = find_split(
            experiment,
            clients,
            folder,
            options=SplitOptions(
                budget=self.case.plan.split_runs * self.case.rounds,
                seeds=seeds if len(seeds) > 1 else (first, first + 1),
                validation=data.validation or SHARE,
                # with few seeds 95% intervals are wide, and would choose what is known to be worse
                choose="one-se",
            ),
        )
        for sentence in found.advice:
            logger.info(sentence)
        write_split_report(folder)
        _drop_checkpoints(folder)
        chosen = replace(experiment, model=experiment.model.with_patterns(**found.chosen.patterns))
        personal = [_personal(one, clients) for one in (chosen, experiment)]
        choice = {"model": found.chosen.patterns, "personal": personal[0], "as_paper": personal[0] == personal[1]}
        write_json(self.folder / STUDY_CHOICE, choice)

    def _split_layers(self, split: str) -> list[Tables]:
        """What the split of a group adds to the settings."""
        return [{"model": self._choice()["model"]}] if split == CHOSEN else []

    def _alike(self, split: str, more: Sequence[Tables] | None = None) -> Alike:
        case = self.case
        own = self._split_layers(split) if more is None else more
        return Alike(
            self.folder / STUDY_TUNE / split,
            self.folder / STUDY_COMPARE / split,
            case.groups[split],
            case.plan.seeds,
            [*self.layers, *own],
            case.plan.options(case.tune_rounds, case.groups[split]),
            {"engine": {"rounds": case.rounds}},
            {"data": case.choosing},
            case.plan.targets,
            self.workers,
        )

    def _tuning(self, split: str) -> Callable[[], None]:
        return lambda: self._alike(split).tune()

    def _comparing(self, split: str) -> Callable[[], None]:
        def do() -> None:
            self._alike(split).compare()
            _drop_checkpoints(self.folder / STUDY_COMPARE / split)

        return do

    @property
    def _axes(self) -> list[Axis]:
        """What is varied in this part: only those with the first cohort vary anything."""
        plan = self.case.plan
        return [axis for axis in plan.axes if plan.swept(axis)] if self.cohort == plan.cohorts[0] else []

    @property
    def _sweep_seeds(self) -> Sequence[int]:
        return self.case.plan.seeds[:SWEEP_SEEDS]

    @property
    def _swept_split(self) -> str:
        """The split of the methods that are varied."""
        return next(iter(self.case.groups))

    def _sweep_folder(self, axis: Axis) -> Path:
        return self.folder / STUDY_SWEEPS / axis.setting

    def _swept(self, axis: Axis, alike: Alike, tuned: Tables) -> list[sweep.Member]:
        """The runs of a sweep, with what the search found."""
        layers = [*alike.layers, tuned, alike.comparing]
        return sweep.members([axis], self.case.plan.swept(axis), self._sweep_seeds, *layers)

    def _sweeping(self, axis: Axis) -> Callable[[], None]:
        def do() -> None:
            alike = self._alike(self._swept_split)
            _, tuned, _ = alike.tuned(self.case.plan.swept(axis))
            folder = self._sweep_folder(axis)
            sweep.run_all([axis], self._swept(axis, alike, tuned), folder, workers=self.workers)
            write_sweep_report(folder)
            _drop_checkpoints(folder)

        return do


def parts(cases: Sequence[Case], out: Path, root: Path | None = None, workers: int | None = None) -> list[Part]:
    """The parts of some cases: all cases with their first cohort, then with their second, and so on."""
    turns = zip_longest(*(case.plan.cohorts for case in cases))
    return [
        Part(case, cohort, out, root, workers)
        for turn in turns
        for case, cohort in zip(cases, turn, strict=True)
        if cohort is not None
    ]


def _personal(experiment: Experiment, clients: Federation) -> list[str]:
    """The names of the personal parameters."""
    return sorted(build.plan(experiment, clients).problem.network(0).split.personal)


def _share_of(folder: Path, pattern: str, total: int) -> Callable[[], float]:
    """Counts the runs in a folder that have ended."""

    def share() -> float:
        ended = sum(_status(path) in ("complete", "diverged") for path in folder.glob(pattern))
        return min(ended / total, 1.0)

    return share


def _drop_checkpoints(folder: Path) -> None:
    """Remove what only a run that is not complete needs; checkpoints are large."""
    for path in folder.rglob(CHECKPOINTS):
        if _status(path.parent) == "complete":
            shutil.rmtree(path, ignore_errors=True)


def _status(run: Path) -> str:
    """How a run stands; nothing where there is none."""
    return str(read_json(run / INFO).get("status", "")) if is_run(run) else ""
