"""Runs side by side: each in a worker process on one thread, with the records it would have by itself."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedapm.core.metrics import Metric
from fedapm.core.network import Loss
from fedapm.core.record import RoundRecord
from fedapm.data import Federation
from fedapm.errors import Diverged, Interrupted
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import Experiment
from fedapm.loggers.console import ProgressDisplay
from fedapm.loggers.rounds import score_text
from fedapm.simulation.loop import Callback
from fedapm.simulation.pool import Parent, Pool, serve
from fedapm.simulation.problem import Model
from fedapm.simulation.spec import RunSpec
from fedapm.simulation.state import RunState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Materials:
    """What all runs have in common beside their settings; workers get it without a copy."""

    clients: Federation
    model: Model | None = None
    loss: Loss | None = None
    metrics: Sequence[Metric] | None = None

    def plan(self, experiment: Experiment) -> RunSpec:
        """A run with these clients."""
        return build.plan(experiment, self.clients, self.model, self.loss, self.metrics)


@dataclass(frozen=True)
class Member:
    """A run and its folder."""

    settings: Experiment
    folder: Path

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.settings.algorithm.label}, seed {self.settings.engine.seed}"

    @property
    def rounds(self) -> int:
        """How many rounds it has."""
        return self.settings.engine.rounds

    def message(self) -> dict[str, Any]:
        """The message that makes a worker run it."""
        return {"settings": self.settings.tables(), "folder": str(self.folder)}


def one_process(spec: RunSpec) -> RunSpec:
    """A run whose clients are trained in the process it runs in; the numbers are the same."""
    return replace(spec, engine="sequential" if spec.engine == "processes" else spec.engine, workers=1)


def run_side_by_side(
    members: Sequence[Member],
    materials: Materials,
    workers: int,
    *,
    progress: bool = True,
    began: Callable[[], None] = lambda: None,
) -> None:
    """Run to the last round what is not finished; a run that was cut off goes on, one that diverges stops no other.

    Args:
        members: The runs, no two in one folder.
        materials: Their clients.
        workers: How many are run at a time.
        progress: Whether to show how far they are.
        began: Called as soon as a run has its first record.

    Raises:
        Interrupted: Ctrl-C; every run that was under way is saved.
    """
    patience = min(member.settings.engine.stuck_after for member in members)
    pool: Pool[Member] = Pool(_run_members, (materials,), min(workers, len(members)), patience)
    display = _Display(members, began)
    left = iter(members)
    try:
        # workers before the display, which has a thread that a fork would not inherit
        with pool, ProgressDisplay() if progress else nullcontext() as display.bars:
            pool.run(lambda: next(left, None), display.hear)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {display.ended} of {len(members)} runs had ended, the others are saved."
        ) from None


def _run_members(connection: Connection, materials: Materials) -> None:
    """The life of a worker."""

    def work(job: Mapping[str, Any], parent: Parent) -> Mapping[str, Any]:
        spec = one_process(materials.plan(Experiment.from_tables(job["settings"])))
        tell = _Tell(parent, spec.schedule.rounds)
        try:
            execute(spec, Path(job["folder"]), resume=True, progress=False, callbacks=[lambda *_: tell])
        except Diverged as error:
            return {"diverged": str(error)}
        return {"score": tell.score}

    serve(connection, work)


class _Tell(Callback):
    """Tells the parent after every round; where nobody listens any more, ends the run as Ctrl-C would."""

    def __init__(self, parent: Parent, rounds: int) -> None:
        self.parent, self.rounds, self.score = parent, rounds, ""

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Say where the run stands."""
        del seconds
        self.score = score_text(record) or self.score
        if self.parent.ask({"round": state.round}) is None and state.round < self.rounds:
            signal.raise_signal(signal.SIGINT)

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Keep the score after the closing phase."""
        del state, seconds
        self.score = score_text(record) or self.score


class _Display:
    """All runs in one bar of rounds, with those under way behind it; a line for each that ends."""

    def __init__(self, members: Sequence[Member], began: Callable[[], None]) -> None:
        self.began = began
        self.bars: ProgressDisplay | None = None
        self.ended = 0
        self._count, self._rounds = len(members), sum(member.rounds for member in members)
        self._at: dict[str, int] = {}
        self._finished = 0

    def hear(self, job: Member, message: dict[str, Any]) -> dict[str, Any] | None:
        """Take what a worker says."""
        if "round" in message:
            if not self._at and not self.ended:
                self.began()
            self._at[job.name] = message["round"]
            self._show()
            return {}
        self.ended += 1
        self._finished += job.rounds
        self._at.pop(job.name, None)
        if "diverged" in message:
            logger.warning("%s The comparison goes on without this run.", message["diverged"])
            self._show()
        else:
            line = f"{job.name}: {message['score']}  ({self.ended} of {self._count} runs)"
            if self.bars is not None:
                self.bars.print(line)
            self._show()
        return None

    def _show(self) -> None:
        if self.bars is not None:
            under_way = " · ".join(f"{name}: {round}" for name, round in self._at.items())
            done = self._finished + sum(self._at.values())
            self.bars.update(f"{self._count} runs, rounds", done, self._rounds, under_way)
