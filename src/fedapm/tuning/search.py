"""Search: trials of all methods dealt out to worker processes until each method has had its number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from shutil import rmtree
from typing import Any

from fedapm.data.federation import Federation
from fedapm.errors import FedapmError, Interrupted
from fedapm.runs.layout import CHECKPOINTS, TRIALS
from fedapm.simulation.loop import uninterrupted
from fedapm.tuning.display import SearchProgress
from fedapm.tuning.options import Options
from fedapm.tuning.study import Study
from fedapm.tuning.trial import Outcome
from fedapm.tuning.worker import PATIENCE, TrialWorker, WorkerDied

TRIES = 3
"""How often a trial is begun whose process dies."""


@dataclass(frozen=True)
class Job:
    """A trial that a worker runs."""

    study: Study
    number: int
    folder: Path
    settings: Mapping[str, Any]

    def message(self, options: Options) -> dict[str, Any]:
        """What the worker is told."""
        runs = [
            (run.tables(), str(self.folder / f"seed-{run.engine.seed}"))
            for run in self.study.subject.experiments(self.settings)
        ]
        return {"runs": runs, "metric": options.metric, "select": options.select}


class Search:
    """Keeps workers busy, writes down what they report, and ends with them."""

    def __init__(
        self, out: Path, options: Options, studies: Sequence[Study], clients: Federation, workers: int, show: bool
    ) -> None:
        self.out, self.options, self.studies, self.clients, self.count = out, options, studies, clients, workers
        self.board = SearchProgress([study.subject for study in studies], options, show)
        self._workers: list[TrialWorker] = []
        self._jobs: dict[TrialWorker, Job] = {}
        self._deaths: Counter[Path] = Counter()

    def run(self) -> None:
        """Run what is left."""
        try:
            # before the display, which has a thread that a fork would not take along
            for _ in range(min(self.count, sum(study.left for study in self.studies))):
                self._workers.append(self._fork())
            with self.board:
                for study in self.studies:
                    self.board.update(study.subject, study.rows())
                self._work()
        except KeyboardInterrupt:
            raise Interrupted("interrupted; the same command goes on from there.") from None
        finally:
            self._stop()

    def _work(self) -> None:
        with uninterrupted():
            self._deal()
        while self._jobs:
            ready = {*wait([worker.connection for worker in self._jobs])}
            # Ctrl-C waits until what was heard is written down
            with uninterrupted():
                for worker in [w for w in self._jobs if w.connection in ready]:
                    try:
                        self._hear(worker, self._jobs[worker])
                    except WorkerDied:
                        self._replace(worker)
                self._deal()

    def _deal(self) -> None:
        """Give every idle worker a trial. Methods take turns, so that few trials of one method run at a time."""
        for worker in [w for w in self._workers if w not in self._jobs]:
            job = self._next()
            if job is None:
                return
            self._jobs[worker] = job
            try:
                worker.tell(job.message(self.options))
            except WorkerDied:
                self._replace(worker)

    def _next(self) -> Job | None:
        for study in sorted(self.studies, key=lambda study: (study.running, study.started)):
            found = study.next()
            if found is not None:
                number, settings = found
                return Job(study, number, self.out / TRIALS / study.subject.name / str(number), settings)
        return None

    def _hear(self, worker: TrialWorker, job: Job) -> None:
        said = worker.hear()
        if "step" in said:
            worker.tell({"stop": job.study.report(job.number, said["step"], said["value"])})
            return
        if "refused" in said:
            raise FedapmError(said["refused"])
        if "failed" in said:
            raise RuntimeError(f"a trial of {job.study.subject.label} failed:\n{said['failed']}")
        job.study.finish(job.number, Outcome(said["status"], tuple(said["scores"])))
        del self._jobs[worker]
        # what a finished trial could be continued from is large, and never needed again
        for folder in job.folder.glob(f"*/{CHECKPOINTS}"):
            rmtree(folder, ignore_errors=True)
        rows = job.study.rows()
        self.board.update(job.study.subject, rows, next(row for row in rows if row.number == job.number))

    def _fork(self) -> TrialWorker:
        return TrialWorker(self.clients, [worker.connection for worker in self._workers])

    def _replace(self, worker: TrialWorker) -> None:
        """A process that died is replaced, and its trial goes on where it was, but not for ever."""
        job = self._jobs.pop(worker)
        self._deaths[job.folder] += 1
        self._workers.remove(worker)
        worker.ask_to_stop()
        worker.end(0)
        if self._deaths[job.folder] >= TRIES:
            raise FedapmError(
                f"the process of trial {job.number} of {job.study.subject.label} died {TRIES} times; if memory is "
                "short, use fewer --workers."
            )
        other = self._fork()
        self._workers.append(other)
        self._jobs[other] = job
        try:
            other.tell(job.message(self.options))
        except WorkerDied:
            self._replace(other)

    def _stop(self) -> None:
        """End all workers, each after it has saved what it was doing."""
        workers, self._workers = self._workers, []
        try:
            for worker in workers:
                worker.ask_to_stop()
            for worker in workers:
                worker.end(PATIENCE)
        finally:
            for worker in workers:
                worker.end(0)
