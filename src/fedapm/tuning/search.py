"""Search: worker processes run the trials of all methods until each method has had its number."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from shutil import rmtree
from typing import Any

from fedapm.errors import FedapmError, Interrupted
from fedapm.runs.layout import CHECKPOINTS, TRIALS
from fedapm.simulation.loop import uninterrupted
from fedapm.simulation.workers import StuckWorkers, WorkerDied, WorkerProcess
from fedapm.tuning.display import SearchProgress
from fedapm.tuning.options import Options
from fedapm.tuning.study import Study
from fedapm.tuning.trial import Clients, Outcome
from fedapm.tuning.worker import PATIENCE, trial_worker

logger = logging.getLogger(__name__)
TRIES = 3
"""How often a trial is started again whose process dies."""


@dataclass(frozen=True)
class Job:
    """A trial that a worker runs."""

    study: Study
    number: int
    folder: Path
    settings: Mapping[str, Any]

    def message(self, options: Options) -> dict[str, Any]:
        """The message that makes a worker run it."""
        runs = [
            (run.tables(), str(self.folder / f"seed-{run.engine.seed}"))
            for run in self.study.search.experiments(self.settings)
        ]
        return {"runs": runs, "metric": options.metric, "select": options.select}


class Search:
    """Keeps workers busy, records what they report, and ends them.

    Args:
        out: The folder of the search.
        options: How the search is done.
        studies: The trials of each method.
        clients: The clients' data.
        workers: How many trials are run at a time.
        progress: Whether progress is displayed.
    """

    def __init__(
        self, out: Path, options: Options, studies: Sequence[Study], clients: Clients, workers: int, progress: bool
    ) -> None:
        self.out, self.options, self.studies, self.clients, self.count = out, options, studies, clients, workers
        self.display = SearchProgress([study.search for study in studies], options, progress)
        self._workers: list[WorkerProcess] = []
        self._jobs: dict[WorkerProcess, Job] = {}
        self._deaths: Counter[Path] = Counter()
        self._stuck = StuckWorkers(min(study.search.base.engine.stuck_after for study in studies))

    def run(self) -> None:
        """Run the remaining trials."""
        try:
            # before the display, which has a thread that a fork would not inherit
            for _ in range(min(self.count, sum(study.remaining for study in self.studies))):
                self._workers.append(self._fork())
            with self.display:
                for study in self.studies:
                    self.display.update(study.search, study.rows())
                self._work()
        except KeyboardInterrupt:
            raise Interrupted("interrupted; the same command goes on from there.") from None
        finally:
            self._stop()

    def _work(self) -> None:
        with uninterrupted():
            self._assign()
        while self._jobs:
            ready = {*wait([worker.connection for worker in self._jobs], self._stuck.interval)}
            for worker in self._stuck.among(self._jobs):
                # its end is noticed as that of any process that dies
                logger.warning(
                    "the process of trial %d has not computed for %g s and is replaced.",
                    self._jobs[worker].number,
                    self._stuck.patience,
                )
                worker.process.kill()
            # Ctrl-C waits until what was received is recorded
            with uninterrupted():
                for worker in [w for w in self._jobs if w.connection in ready]:
                    try:
                        self._handle(worker, self._jobs[worker])
                    except WorkerDied:
                        self._replace(worker)
                self._assign()

    def _assign(self) -> None:
        """Give every idle worker a trial. Methods take turns, so that few trials of one method run at a time."""
        for worker in [w for w in self._workers if w not in self._jobs]:
            job = self._next()
            if job is None:
                return
            self._start(worker, job)

    def _start(self, worker: WorkerProcess, job: Job) -> None:
        self._jobs[worker] = job
        self._stuck.begin(worker)
        try:
            worker.send(job.message(self.options))
        except WorkerDied:
            self._replace(worker)

    def _next(self) -> Job | None:
        for study in sorted(self.studies, key=lambda study: (study.running, study.started)):
            trial = study.next_trial()
            if trial is not None:
                number, settings = trial
                return Job(study, number, self.out / TRIALS / study.search.name / str(number), settings)
        return None

    def _handle(self, worker: WorkerProcess, job: Job) -> None:
        message = worker.receive()
        if "step" in message:
            worker.send({"stop": job.study.report(job.number, message["step"], message["value"])})
            return
        if "refused" in message:
            raise FedapmError(message["refused"])
        if "failed" in message:
            raise RuntimeError(f"a trial of {job.study.search.label} failed:\n{message['failed']}")
        job.study.finish(job.number, Outcome(message["status"], tuple(message["scores"])))
        del self._jobs[worker]
        # checkpoints are large, and a finished trial is never resumed
        for folder in job.folder.glob(f"*/{CHECKPOINTS}"):
            rmtree(folder, ignore_errors=True)
        rows = job.study.rows()
        self.display.update(job.study.search, rows, next(row for row in rows if row.number == job.number))

    def _fork(self) -> WorkerProcess:
        return trial_worker(self.clients, self._workers)

    def _replace(self, worker: WorkerProcess) -> None:
        """Replace a process that died and resume its trial, a limited number of times."""
        job = self._jobs.pop(worker)
        self._deaths[job.folder] += 1
        self._workers.remove(worker)
        worker.interrupt()
        worker.end(0)
        if self._deaths[job.folder] >= TRIES:
            raise FedapmError(
                f"the process of trial {job.number} of {job.study.search.label} died {TRIES} times; if memory is "
                "short, use fewer --workers."
            )
        other = self._fork()
        self._workers.append(other)
        self._start(other, job)

    def _stop(self) -> None:
        """End all workers, each after it has saved its run."""
        workers, self._workers = self._workers, []
        try:
            for worker in workers:
                worker.interrupt()
            for worker in workers:
                worker.end(PATIENCE)
        finally:
            for worker in workers:
                worker.end(0)
