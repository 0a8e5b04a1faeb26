"""One trial: a method with some settings, run with every seed and scored on validation data."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedapm.core.network import Loss
from fedapm.core.record import RoundRecord
from fedapm.data.federation import Federation
from fedapm.errors import Diverged, Interrupted
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import Experiment
from fedapm.runs.records import is_run, load_run
from fedapm.simulation.loop import Callback
from fedapm.simulation.problem import Model
from fedapm.simulation.state import RunState
from fedapm.tuning.scorer import Scorer

ShouldStop = Callable[[int, float], bool]
"""Takes a step and the score after it; returns whether the trial should stop."""


@dataclass(frozen=True)
class Clients:
    """Whom trials are run for, and what is trained where the settings do not name it."""

    federation: Federation
    model: Model | None = None
    loss: Loss | None = None


@dataclass(frozen=True)
class Outcome:
    """How a trial ended, and the scores of the seeds that were run to their end."""

    status: Literal["complete", "pruned", "diverged"]
    scores: tuple[float, ...]


class PruningCallback(Callback):
    """Reports the scores of a run, and ends it where it is not worth going on.

    Args:
        scorer: How rounds are scored.
        should_stop: Where the scores are reported.
        offset: The steps of the trial's earlier runs.
        rounds: How many rounds the run has.
    """

    def __init__(self, scorer: Scorer, should_stop: ShouldStop, offset: int, rounds: int) -> None:
        self.scorer, self.should_stop, self.offset, self.rounds = scorer, should_stop, offset, rounds
        self.stopped = False

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Report the score; to stop, end the run as Ctrl-C would, after the round and with a checkpoint."""
        del seconds
        score = self.scorer.score(record)
        if score is None or state.round == 0:
            return
        self.stopped = self.should_stop(self.offset + state.round, score)
        if self.stopped and state.round < self.rounds:
            signal.raise_signal(signal.SIGINT)


def run_trial(
    runs: Sequence[tuple[Experiment, Path]], clients: Clients, scorer: Scorer, should_stop: ShouldStop
) -> Outcome:
    """Run a trial's seeds one after the other.

    Args:
        runs: The experiment of each seed and its folder. A finished run is not repeated, an interrupted one resumed.
        clients: The clients' data.
        scorer: How runs are scored.
        should_stop: Takes the scores on the way and may end the trial early.
    """
    scores: list[float] = []
    for index, (experiment, folder) in enumerate(runs):
        rounds = experiment.engine.rounds
        callback = PruningCallback(scorer, should_stop, index * (rounds + 1), rounds)
        try:
            records = _records(experiment, folder, clients, callback)
        except Diverged:
            return Outcome("diverged", tuple(scores))
        except Interrupted:
            if not callback.stopped:
                raise
            return Outcome("pruned", tuple(scores))
        scores.append(scorer.run_score(records))
        if callback.stopped and index + 1 < len(runs):
            return Outcome("pruned", tuple(scores))
    return Outcome("complete", tuple(scores))


def _records(
    experiment: Experiment, folder: Path, clients: Clients, callback: PruningCallback
) -> Sequence[Mapping[str, Any]]:
    if is_run(folder) and (run := load_run(folder)).complete:
        return run.rounds
    spec = build.plan(experiment, clients.federation, clients.model, clients.loss)
    return execute(spec, folder, resume=True, progress=False, callbacks=[lambda *_: callback]).records
