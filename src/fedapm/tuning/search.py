"""Search: worker processes run the trials of all methods until each method has had its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from fedapm.errors import Interrupted
from fedapm.runs.layout import CHECKPOINTS, TRIALS
from fedapm.simulation.pool import Pool
from fedapm.tuning.display import SearchProgress
from fedapm.tuning.options import Options
from fedapm.tuning.study import Study
from fedapm.tuning.trial import Clients, Outcome
from fedapm.tuning.worker import run_trials


@dataclass(frozen=True)
class Job:
    """A trial that a worker runs."""

    study: Study
    number: int
    folder: Path
    settings: Mapping[str, Any]
    options: Options

    @property
    def name(self) -> str:
        """What to call it."""
        return f"trial {self.number} of {self.study.search.label}"

    def message(self) -> dict[str, Any]:
        """The message that makes a worker run it."""
        runs = [
            (run.tables(), str(self.folder / f"seed-{run.engine.seed}"))
            for run in self.study.search.experiments(self.settings)
        ]
        return {"runs": runs, "metric": self.options.metric, "select": self.options.select}


class Search:
    """Deals out trials and records what comes back.

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
        self.out, self.options, self.studies = out, options, studies
        self.display = SearchProgress([study.search for study in studies], options, progress)
        patience = min(study.search.base.engine.stuck_after for study in studies)
        count = min(workers, sum(study.remaining for study in studies))
        self.pool: Pool[Job] = Pool(run_trials, (clients,), count, patience)

    def run(self) -> None:
        """Run the remaining trials."""
        # a search that was killed may have recorded the end of a trial and no more
        for study in self.studies:
            for number in study.finished:
                _drop_checkpoints(self._folder(study, number))
        try:
            # workers before the display, which has a thread that a fork would not inherit
            with self.pool, self.display:
                for study in self.studies:
                    self.display.update(study.search, study.rows())
                self.pool.run(self._next, self._handle)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; the same command goes on from there.") from None

    def _next(self) -> Job | None:
        """The next trial. Methods take turns, so that few trials of one method run at a time."""
        for study in sorted(self.studies, key=lambda study: (study.running, study.started)):
            trial = study.next_trial()
            if trial is not None:
                number, settings = trial
                return Job(study, number, self._folder(study, number), settings, self.options)
        return None

    def _handle(self, job: Job, message: dict[str, Any]) -> dict[str, Any] | None:
        if "step" in message:
            return {"stop": job.study.report(job.number, message["step"], message["value"])}
        job.study.finish(job.number, Outcome(message["status"], tuple(message["scores"])))
        _drop_checkpoints(job.folder)
        rows = job.study.rows()
        self.display.update(job.study.search, rows, next(row for row in rows if row.number == job.number))
        return None

    def _folder(self, study: Study, number: int) -> Path:
        return self.out / TRIALS / study.search.name / str(number)


def _drop_checkpoints(trial: Path) -> None:
    """Remove the checkpoints of a finished trial: they are large, and it is never resumed."""
    for folder in trial.glob(f"*/{CHECKPOINTS}"):
        rmtree(folder, ignore_errors=True)
