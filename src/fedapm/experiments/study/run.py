"""A study from start to end: checked, measured, then case after case. The same command goes on after a kill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.study.estimate import Costs, Row, duration, estimate, measured, seconds
from fedapm.experiments.study.part import Part, parts
from fedapm.experiments.study.settings import Case, Study
from fedapm.report.study.card import write_part_card, write_study_card
from fedapm.report.study.lines import Line, read_lines, write_lines
from fedapm.report.study.page import write_study_report
from fedapm.report.study.sweeps import SweepLine, read_sweeps, write_sweeps
from fedapm.report.study.tables import tables
from fedapm.runs.files import read_json, write_json
from fedapm.runs.folder import locked, refuse_foreign, tidy
from fedapm.runs.layout import CARD, STUDY_INFO, SUMMARY, SWEEPS
from fedapm.runs.provenance import timed
from fedapm.simulation.workers import cores
from fedapm.version import __version__

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StudyRun:
    """A study in a folder."""

    study: Study
    out: Path
    root: Path | None = None
    workers: int | None = None
    """Trials and runs at a time; as many as there are processors and memory for if not given."""
    cohorts: tuple[float, ...] = ()
    """The shares of clients that are run; all of the study's if not given."""
    command: str | None = None
    """The command that was given, for the cards."""

    @property
    def count(self) -> int:
        """Trials and runs at a time, where there is memory for them."""
        return self.workers or cores()

    def parts(self, cases: Sequence[Case]) -> list[Part]:
        """The parts of some cases that are asked for."""
        found = parts(cases, self.out, self.root, self.workers)
        return [part for part in found if not self.cohorts or part.cohort in self.cohorts]

    def estimate(self, only: Sequence[str] = ()) -> tuple[list[Row], dict[str, str]]:
        """How long it takes. Nothing is written.

        Args:
            only: The cases; all if not given.

        Returns:
            A row for each part, and for each case whose data is not there why.
        """
        cases = self.study.only(list(only))
        self._check(cases)
        missing = self._missing(cases)
        there = [case for case in cases if case.name not in missing]
        costs = measured(there, self.out, self.root, keep=False)
        return estimate(self.parts(there), costs), missing

    def run(self, only: Sequence[str] = (), said: Callable[[list[Row], int], None] | None = None) -> None:
        """Do what is not done yet.

        Args:
            only: The cases; all if not given.
            said: Called with the estimate before the first step.

        Raises:
            FedapmError: Where the file, a setting or the data of a case is wrong, before anything is computed; or where
                the folder was begun with another study.
        """
        cases = self.study.only(list(only))
        with locked(self.out, "fedapm study"):
            self._check(cases)
            self._begin(write=False)
            if missing := self._missing(cases):
                name, why = next(iter(missing.items()))
                more = f" The data of {', '.join(list(missing)[1:])} is missing, too." if len(missing) > 1 else ""
                raise FedapmError(f"[cases.{name}]: {why}{more} Or leave it out with --only.")
            self._begin(write=True)
            tidy(self.out)
            costs = measured(cases, self.out, self.root, keep=True)
            todo = self.parts(cases)
            if said is not None:
                said(estimate(todo, costs), self.count)
            self._work(todo, costs)

    def info(self) -> dict[str, Any]:
        """What study.json holds."""
        return {
            "fedapm": __version__,
            "title": self.study.title,
            "cases": {case.name: case.as_dict() for case in self.study.cases},
        }

    def _check(self, cases: Sequence[Case]) -> None:
        if self.workers is not None and self.workers < 1:
            raise FedapmError(f"--workers {self.workers}: there must be at least one.")
        known = sorted({cohort for case in cases for cohort in case.plan.cohorts})
        for cohort in self.cohorts:
            if cohort not in known:
                raise FedapmError(f"--cohort {cohort:g}: it is not in the study; it has {', '.join(map(str, known))}.")
        for part in self.parts(cases):
            try:
                part.check()
            except FedapmError as error:
                raise FedapmError(f"[cases.{part.case.name}]: {error}") from None

    def _missing(self, cases: Sequence[Case]) -> dict[str, str]:
        """The cases whose data is not there, and why."""
        missing: dict[str, str] = {}
        for case in cases:
            part = Part(case, case.plan.cohorts[0], self.out, self.root)
            try:
                clients = build.counted(part.experiment(case.plan.method_names[0]).data)
            except FedapmError as error:
                missing[case.name] = str(error)
                continue
            if not clients[0].train.classified:
                raise FedapmError(f"[cases.{case.name}]: a study compares accuracies, and this data has no classes.")
        return missing

    def _begin(self, *, write: bool) -> None:
        path, info = self.out / STUDY_INFO, self.info()
        if not path.is_file():
            refuse_foreign(self.out, STUDY_INFO, "study")
            if write:
                write_json(path, info)
            return
        before = read_json(path)
        old, new = before.get("cases", {}), _plain(info["cases"])
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        if changed:
            raise FedapmError(
                f"{self.out} was begun with another study: {_difference(changed[0], old, new)}; use another folder."
            )

    def _work(self, todo: Sequence[Part], costs: Costs) -> None:
        took = _Pace(self.count)
        for number, part in enumerate(todo, start=1):
            logger.info("Part %d of %d: %s", number, len(todo), part.title)
            # who finds a part done has not computed it, so its card stays
            done = (part.folder / CARD).is_file() and all(step.done() >= 1 for step in part.steps())
            with timed(part.folder):
                for step in part.steps():
                    there = step.done()
                    if there < 1:
                        left = sum(row.left for row in estimate(todo[number - 1 :], costs))
                        logger.info("%s: %s; about %s left", part.title, step.name, duration(took.wall(left)))
                    began = time.monotonic()
                    step.do()
                    took.add((1 - there) * seconds(step, part, costs[part.case.name]), time.monotonic() - began)
                part.report()
            if not done:
                write_part_card(part.folder, part.case.name, part.cohort, self.command)
            self.summarize()

    def summarize(self) -> None:
        """Write summary, card and report of the parts that are done, in the order of the study.

        Parts of other commands are among them. A study that is interrupted later has these files all the same.
        """
        lines: list[Line] = []
        swept: list[SweepLine] = []
        every = parts(self.study.cases, self.out)
        for part in every:
            if (part.folder / SUMMARY).is_file():
                lines += read_lines(part.folder / SUMMARY)
            swept += read_sweeps(part.folder / SWEEPS)
        write_lines(self.out / SUMMARY, lines)
        if swept:
            write_sweeps(self.out / SWEEPS, swept)
        write_study_card(self.out, [part.folder for part in every])
        # where all runs diverged there is nothing to draw yet, and the other parts go on
        if any(table.scored for table in tables(lines)):
            write_study_report(self.out)


class _Pace:
    """How long steps take against what was estimated.

    Args:
        workers: Trials and runs at a time.
    """

    def __init__(self, workers: int) -> None:
        self.workers, self.expected, self.spent = workers, 0.0, 0.0

    def add(self, expected: float, spent: float) -> None:
        """A step has ended: so many processor seconds were expected, so many of the clock were spent."""
        self.expected += expected
        self.spent += spent

    def wall(self, left: float) -> float:
        """The time that so many processor seconds will take."""
        return left * (self.spent / self.expected if self.expected > 1 else 1 / self.workers)


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _difference(name: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    if name not in old or name not in new:
        return f"the case {name} is {'new' if name in new else 'gone'}"
    plans = {**old[name], **old[name].get("plan", {})}, {**new[name], **new[name].get("plan", {})}
    keys = [key for key in {**plans[0], **plans[1]} if key != "plan" and plans[0].get(key) != plans[1].get(key)]
    return f"{', '.join(keys)} of the case {name} {'is' if len(keys) == 1 else 'are'} other"
