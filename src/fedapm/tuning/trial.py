"""One trial: a method with some settings, run with every seed and judged on validation data."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedapm.core.record import RoundRecord
from fedapm.data.federation import Federation
from fedapm.errors import Diverged, FedapmError, Interrupted
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import Experiment
from fedapm.runs.records import is_run, load_run
from fedapm.simulation.loop import Callback
from fedapm.simulation.state import RunState

Ask = Callable[[int, float], bool]
"""Hears the score after a step and says whether to stop."""


@dataclass(frozen=True)
class Outcome:
    """How a trial ended, and the scores of the seeds that were run to their end."""

    status: Literal["complete", "pruned", "diverged"]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Scorer:
    """Which number of an evaluation counts, and of which round."""

    metric: str
    select: str

    def score(self, record: Mapping[str, Any]) -> float | None:
        """The score after a round, larger being better; None where nothing was evaluated."""
        if not record["evaluations"]:
            return None
        # the first view is the model a method is meant for, as the personal one of Ditto
        found = next(iter(record["evaluations"].values()))
        if self.metric != "test_loss":
            if self.metric not in found:
                raise FedapmError(
                    f"no client has {self.metric} on its validation data to judge trials by; take another --metric."
                )
            return float(found[self.metric]["mean"])
        loss = found.get("test_loss")
        # clients whose loss is infinite are not in its mean, which would flatter a model that failed on them
        if loss is None or loss["clients"] < found.get("accuracy", loss)["clients"]:
            return -math.inf
        return -float(loss["mean"])

    def of(self, records: Sequence[Mapping[str, Any]]) -> float:
        """The score of a whole run."""
        known = [s for s in map(self.score, (r for r in records if r["round"] > 0)) if s is not None]
        return known[-1] if self.select == "last" else max(known)


class PruningCallback(Callback):
    """Follows a run, tells its scores, and interrupts it politely where it is not worth going on."""

    def __init__(self, judge: Scorer, ask: Ask, offset: int, rounds: int) -> None:
        self.judge, self.ask, self.offset, self.rounds = judge, ask, offset, rounds
        self.stopped = False

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Tell the score; if told to stop, end the run as Ctrl-C would, after the round and with a checkpoint."""
        del seconds
        score = self.judge.score(record)
        if score is None or state.round == 0:
            return
        self.stopped = self.ask(self.offset + state.round, score)
        if self.stopped and state.round < self.rounds:
            signal.raise_signal(signal.SIGINT)


def run_trial(runs: Sequence[tuple[Experiment, Path]], clients: Federation, judge: Scorer, ask: Ask) -> Outcome:
    """Run a trial's seeds one after the other; what was there already is kept, a run that was cut off goes on."""
    scores: list[float] = []
    for index, (settings, folder) in enumerate(runs):
        rounds = settings.engine.rounds
        watch = PruningCallback(judge, ask, index * (rounds + 1), rounds)
        try:
            records = _records(settings, folder, clients, watch)
        except Diverged:
            return Outcome("diverged", tuple(scores))
        except Interrupted:
            if not watch.stopped:
                raise
            return Outcome("pruned", tuple(scores))
        scores.append(judge.of(records))
        if watch.stopped and index + 1 < len(runs):
            return Outcome("pruned", tuple(scores))
    return Outcome("complete", tuple(scores))


def _records(
    settings: Experiment, folder: Path, clients: Federation, watch: PruningCallback
) -> Sequence[Mapping[str, Any]]:
    if is_run(folder) and (run := load_run(folder)).complete:
        return run.rounds
    plan = build.plan(settings, clients)
    return execute(plan, folder, resume=True, progress=False, callbacks=[lambda *_: watch]).records
