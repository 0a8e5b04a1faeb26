"""Runs side by side: each in a worker process on one thread, with the records it would have by itself."""

from __future__ import annotations

import logging
import multiprocessing as mp
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
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
from fedapm.experiments.settings import DataSettings, Experiment
from fedapm.loggers.console import ProgressDisplay
from fedapm.loggers.rounds import LINES, score_text
from fedapm.loggers.series import Series, Turn
from fedapm.simulation.engines import processes
from fedapm.simulation.loop import Callback
from fedapm.simulation.memory import data_bytes, free_memory, run_bytes
from fedapm.simulation.pool import Parent, Pool, serve
from fedapm.simulation.problem import Model
from fedapm.simulation.spec import RunSpec
from fedapm.simulation.state import RunState
from fedapm.simulation.workers import cores

logger = logging.getLogger(__name__)
DEALS_OUT = ("processes", "ray")
"""Engines that deal clients out to processes themselves."""


class Materials:
    """What runs have in common beside their settings; workers get it without a copy.

    Args:
        clients: Whom to train; None for those that each run's settings name, of which only the last are kept.
        model: The network, where it is not the one that the settings name.
        loss: As in :func:`fedapm.train`.
        metrics: As in :func:`fedapm.experiments.build.plan`.
    """

    def __init__(
        self,
        clients: Federation | None = None,
        model: Model | None = None,
        loss: Loss | None = None,
        metrics: Sequence[Metric] | None = None,
    ) -> None:
        self._clients, self._model, self._loss, self._metrics = clients, model, loss, metrics
        self._last: tuple[DataSettings, Federation] | None = None

    def clients(self, data: DataSettings) -> Federation:
        """The clients of a run."""
        if self._clients is not None:
            return self._clients
        if self._last is None or self._last[0] != data:
            self._last = None
            self._last = data, build.federation(data)
        return self._last[1]

    def plan(self, experiment: Experiment) -> RunSpec:
        """A run with its clients."""
        return build.plan(experiment, self.clients(experiment.data), self._model, self._loss, self._metrics)


@dataclass(frozen=True)
class Member:
    """A run and its folder."""

    settings: Experiment
    folder: Path
    title: str = ""
    """What to call it, where method and seed are not enough."""

    @property
    def name(self) -> str:
        """What to call it."""
        return self.title or f"{self.settings.algorithm.label}, seed {self.settings.engine.seed}"

    @property
    def rounds(self) -> int:
        """How many rounds it has."""
        return self.settings.engine.rounds

    def message(self) -> dict[str, Any]:
        """The message that makes a worker run it."""
        return {"settings": self.settings.tables(), "folder": str(self.folder)}


def one_process(spec: RunSpec) -> RunSpec:
    """A run whose clients are trained in the process it runs in; the numbers are the same."""
    return replace(spec, engine="sequential" if spec.engine in DEALS_OUT else spec.engine, workers=1)


@dataclass(frozen=True)
class Demand:
    """What a run asks of the machine."""

    engine: str
    """How its clients are run."""
    obstacle: str | None
    """Why it cannot go side by side with others, if it cannot."""
    nbytes: int
    """Memory that a process needs for it."""

    @classmethod
    def of(cls, spec: RunSpec, *, own_data: bool = False) -> Demand:
        """What a run asks for.

        Args:
            spec: The run.
            own_data: Whether its process has to read the clients' data for itself.
        """
        problem = spec.problem
        obstacle = processes.unable(problem)
        need = 0 if obstacle is not None else run_bytes(spec) + (data_bytes(problem.federation) if own_data else 0)
        return cls("sequential" if spec.workers == 1 else spec.engine, obstacle, need)


def runs_at_once(runs: int, asked: int | None, demands: Collection[Demand]) -> int:
    """How many runs to do at a time: not more than there are processors, nor than there is memory for.

    Args:
        runs: How many there are to do.
        asked: How many the user wants at a time; None leaves it open.
        demands: What they ask for.
    """
    if runs < 2 or asked == 1 or any(demand.engine in DEALS_OUT for demand in demands):
        return 1
    obstacle = next((demand.obstacle for demand in demands if demand.obstacle is not None), None)
    if obstacle is None and mp.current_process().daemon:
        obstacle = "this process is itself a worker"
    if obstacle is not None:
        if asked is not None:
            logger.warning("runs are done one after the other, because %s.", obstacle)
        return 1
    if asked is not None:
        return min(asked, runs)
    if 2 * runs < cores() and any(demand.engine == "auto" for demand in demands):
        # one run that deals its clients out has more use for the processors
        return 1
    most = min(runs, cores())
    need = max(demand.nbytes for demand in demands)
    fits = max(int(min(free_memory() / need, most)), 1)
    if fits < most:
        logger.info("%d of %d processors are used: a run takes about %d MiB of memory.", fits, most, need >> 20)
    return fits


def run_side_by_side(
    members: Sequence[Member],
    materials: Materials,
    at_once: int,
    *,
    progress: bool = True,
    began: Callable[[], None] = lambda: None,
    whole: str = "comparison",
) -> None:
    """Run to the last round what is not finished; a run that was cut off goes on, one that diverges stops no other.

    Args:
        members: The runs, no two in one folder.
        materials: Their clients.
        at_once: How many are run at a time.
        progress: Whether to show how far they are.
        began: Called as soon as a run has its first record.
        whole: What the runs are together.

    Raises:
        Interrupted: Ctrl-C; every run that was under way is saved.
    """
    patience = min(member.settings.engine.stuck_after for member in members)
    at_once = min(at_once, len(members))
    pool: Pool[Member] = Pool(_run_members, (materials,), at_once, patience)
    display = _Display(members, at_once, began, whole)
    try:
        # workers before the display, which has a thread that a fork would not inherit
        with pool, ProgressDisplay() if progress else nullcontext() as display.bars:
            pool.run(display.deal, display.hear)
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
        answer = self.parent.ask({"round": state.round, "score": self.score})
        if answer is None and state.round < self.rounds:
            signal.raise_signal(signal.SIGINT)

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Keep the score after the closing phase."""
        del state, seconds
        self.score = score_text(record) or self.score


class _Display:
    """A bar for all runs, with the time left, and one for each that is under way; a line for each that ends."""

    def __init__(self, members: Sequence[Member], at_once: int, began: Callable[[], None], whole: str) -> None:
        self.began, self.whole = began, whole
        self.bars: ProgressDisplay | None = None
        self.ended = 0
        self._all = f"all {len(members)} runs, {at_once} at a time"
        self._series = Series([(m.settings.algorithm.name, m.rounds) for m in members], at_once=at_once)
        self._left = iter(enumerate(members))
        self._turns: dict[str, Turn] = {}
        self._begun = False

    def deal(self) -> Member | None:
        """The next run; None where all are dealt out."""
        position, member = next(self._left, (0, None))
        if member is not None:
            self._turns[member.name] = self._series.turn(position)
        return member

    def hear(self, job: Member, message: dict[str, Any]) -> dict[str, Any] | None:
        """Take what a worker says."""
        turn = self._turns[job.name]
        if "round" in message:
            if not self._begun:
                self._begun = True
                self.began()
            turn.advance(job.rounds - message["round"])
            self._show(job, message["round"], message["score"], turn.time_left)
            return {}
        self.ended += 1
        self._series.end(turn.position)
        if self.bars is not None:
            self.bars.drop(job.name)
        if "diverged" in message:
            logger.warning("%s The %s goes on without this run.", message["diverged"], self.whole)
        elif self.bars is not None:
            self.bars.print(f"{job.name}: {message['score']}  ({self.ended} of {len(self._series)} runs)")
        self._show_all(turn.time_left)
        return None

    def _show(self, job: Member, round: int, score: str, left: str) -> None:
        if self.bars is not None:
            self._show_all(left)
            due = 0 < round < job.rounds and round % max(1, job.rounds // LINES) == 0
            line = f"{job.name}: round {round}/{job.rounds}{score and '  ' + score}  {left} left in all"
            self.bars.update(job.name, round, job.rounds, score, line if due else None)

    def _show_all(self, left: str) -> None:
        if self.bars is not None:
            self.bars.update(self._all, self.ended, len(self._series), left=left)
