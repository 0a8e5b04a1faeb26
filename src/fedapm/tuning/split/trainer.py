"""Trainer: runs candidates up to a round, from where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

from fedapm.core.candidates import SplitCandidate
from fedapm.core.metrics import Metric
from fedapm.core.network import Loss
from fedapm.core.record import RoundRecord
from fedapm.data.federation import Federation
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import Experiment
from fedapm.runs.layout import CANDIDATES, CHECKPOINTS
from fedapm.simulation.loop import Callback
from fedapm.simulation.problem import Model
from fedapm.simulation.spec import RunSpec


@dataclass(frozen=True)
class Trainer:
    """Trains candidates, each in a folder of its own."""

    base: Experiment
    """What all candidates have in common."""
    clients: Federation
    """The clients, with validation data in place of their test data."""
    out: Path
    model: Model | None
    loss: Loss | None
    metrics: Sequence[Metric] | None

    @property
    def continued(self) -> bool:
        """Whether a longer run goes on from a shorter one; a schedule over all rounds makes it another one."""
        return self.base.solver.lr_schedule != "cosine"

    def train(
        self, number: int, candidate: SplitCandidate, rounds: int, seed: int, callback: Callback
    ) -> list[RoundRecord]:
        """Run a candidate up to a round, from where it stands if it was run before; the records of all its rounds."""
        spec, folder = self.spec(candidate, rounds, seed), self._folder(number, rounds, seed)
        return execute(spec, folder, resume=True, progress=False, callbacks=[lambda *_: callback]).records

    def spec(self, candidate: SplitCandidate, rounds: int, seed: int) -> RunSpec:
        """A candidate's run."""
        experiment = replace(
            self.base,
            model=self.base.model.with_patterns(candidate.personal, candidate.shared),
            engine=replace(self.base.engine, rounds=rounds, seed=seed),
        )
        return build.plan(experiment, self.clients, self.model, self.loss, self.metrics)

    def _folder(self, number: int, rounds: int, seed: int) -> Path:
        folder = self.out / CANDIDATES / f"{number:02d}" / f"seed-{seed}"
        return folder if self.continued else folder.with_name(f"seed-{seed}-rounds-{rounds}")

    def forget(self, numbers: Sequence[int]) -> None:
        """Remove the checkpoints of candidates that are not trained any more; their records stay."""
        for number in numbers:
            for folder in (self.out / CANDIDATES / f"{number:02d}").glob(f"*/{CHECKPOINTS}"):
                rmtree(folder, ignore_errors=True)
