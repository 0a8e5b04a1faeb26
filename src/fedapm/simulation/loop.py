"""The rounds: select, broadcast, train, add up, update, evaluate, record."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Protocol, runtime_checkable

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.metrics import summarize
from fedapm.core.vec import Vec, total
from fedapm.errors import Diverged, Interrupted, StopRun
from fedapm.simulation.engines.base import Engine, RoundResult, Undo
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.stores.base import ClientState, InitClient, MemoryStore, Store

Record = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round. The random streams are keyed by round, so this is all there is."""

    round: int
    server: State
    store: Store
    bytes_up: int = 0
    bytes_down: int = 0
    stopped: str | None = None
    """Why a callback ended the run here, before its last round."""

    def info(self, status: str) -> dict[str, Any]:
        """What run.json says of how the run ended."""
        return {"status": status, "finished": self.round} | ({"stopped": self.stopped} if self.stopped else {})


class Callback(Protocol):
    """Something that follows a run: a record, a checkpoint, a progress bar."""

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        """A round is finished and its results are in place; raise ``StopRun`` to end the run here."""

    def on_run_end(self, progress: Progress, status: str) -> None:
        """The run ends: complete, interrupted or diverged."""


@runtime_checkable
class ResumableCallback(Callback, Protocol):
    """A callback that depends on earlier rounds: a resumed run gives it their records first."""

    def restore(self, records: Sequence[Record]) -> None:
        """Take in the records of the rounds there are; like the end of a round, it may raise StopRun."""


@dataclass(frozen=True)
class Schedule:
    """How long, with how many clients, and how often to look."""

    rounds: int
    sampling: Sampling
    evaluate_every: int = 1
    stationarity: bool = False

    def evaluates(self, round: int) -> bool:
        """Whether models are evaluated after a round; the first and the last always are."""
        return round % self.evaluate_every == 0 or round == self.rounds


class Loop:
    """Runs a method on a problem, round by round."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        schedule: Schedule,
        callbacks: Sequence[Callback] = (),
        engine: Engine | None = None,
        make_store: Callable[[InitClient], Store] = MemoryStore,
    ) -> None:
        self.problem, self.algorithm, self.schedule = problem, algorithm, schedule
        self.callbacks = callbacks
        schedule.sampling.size(len(problem))
        self._make_store = make_store
        self.engine: Engine = engine or SequentialEngine(problem, algorithm)
        self.progress = self.start()

    def start(self) -> Progress:
        """Before the first round."""
        store = self._make_store(client_starts(self.problem, self.algorithm))
        return Progress(0, self.algorithm.server_init(self.problem.u0), store)

    def run(self, progress: Progress | None = None, records: Sequence[Record] = ()) -> Progress:
        """Go on from where a run stands, with these records, until its last round or until a callback stops it."""
        self.progress = progress or self.progress
        status = "interrupted"
        try:
            if progress is None:
                began = time.perf_counter()
                self._finish(self.progress, self._record(self.progress), began)
            elif progress.stopped is None:
                self._restore(records)
            while self.progress.round < self.schedule.rounds and self.progress.stopped is None:
                self._round(self.progress)
            status = "complete"
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted after round {self.progress.round} of {self.schedule.rounds}.") from None
        except Diverged:
            status = "diverged"
            raise
        finally:
            with uninterrupted():
                for callback in self.callbacks:
                    callback.on_run_end(self.progress, status)
        return self.progress

    def _round(self, before: Progress) -> None:
        began = time.perf_counter()
        round, store = before.round + 1, before.store
        selected = self.schedule.sampling.draw(len(self.problem), self.problem.seed, round)
        broadcast = self.algorithm.broadcast(before.server)
        work = self.engine.run_round(selected, broadcast, store, round)
        if not work.good:
            raise Diverged(self._advice(round, "every selected client's update was not finite"))
        after = Progress(
            round,
            self.algorithm.server_update(before.server, work.total, len(self.problem)),
            store,
            before.bytes_up + work.bytes_up,
            before.bytes_down + broadcast.nbytes * len(selected),
        )
        undo: Undo | None = None
        try:
            with uninterrupted():
                undo = work.commit(store)
            self._finish(after, self._record(after, before, selected, work), began)
        except BaseException:
            # the round is not recorded, so it must not have happened: whoever saves now saves the round before
            if undo is not None and self.progress is before:
                with uninterrupted():
                    undo()
            raise

    def _finish(self, progress: Progress, record: Record, began: float) -> None:
        reasons = []
        with uninterrupted():
            for callback in self.callbacks:
                try:
                    callback.on_round_end(progress, record, time.perf_counter() - began)
                except StopRun as stop:
                    reasons.append(str(stop))
            self.progress = replace(progress, stopped=reasons[0]) if reasons else progress

    def _restore(self, records: Sequence[Record]) -> None:
        for callback in self.callbacks:
            if isinstance(callback, ResumableCallback):
                try:
                    callback.restore(records)
                except StopRun as stop:
                    self.progress = replace(self.progress, stopped=str(stop))

    def _record(
        self,
        after: Progress,
        before: Progress | None = None,
        selected: Sequence[int] = (),
        work: RoundResult | None = None,
    ) -> Record:
        kept = {*work.good} if work is not None else set()
        record: Record = {
            "round": after.round,
            "selected": list(selected),
            "dropped": [k for k in selected if k not in kept],
            "bytes_up": after.bytes_up - (before.bytes_up if before else 0),
            "bytes_down": after.bytes_down - (before.bytes_down if before else 0),
            "total_bytes_up": after.bytes_up,
            "total_bytes_down": after.bytes_down,
            "drift": work.drift(after.server, self.problem.drift_names) if work is not None else None,
            "local": work.local if work is not None else None,
        }
        if self.schedule.stationarity:
            record["stationarity"] = self._stationarity(after)
        self._settled(after, record)
        record["evaluations"] = self._evaluate(after) if self.schedule.evaluates(after.round) else None
        return record

    def _settled(self, after: Progress, record: Record) -> None:
        """A round's results are in place and all but its evaluation is known; here a subclass may save them."""

    def _evaluate(self, state: Progress) -> dict[str, Any]:
        broadcast = self.algorithm.broadcast(state.server)
        everyone = range(len(self.problem))
        found = {}
        for view in self.algorithm.views:
            rows = list(self.engine.evaluate(everyone, broadcast, state.store, view))
            if not any(math.isfinite(row["train_loss"] or 0.0) for row in rows):
                raise Diverged(self._advice(state.round, "no client's training loss is finite"))
            found[view] = summarize(rows, self.problem.metrics)
        return found

    def _stationarity(self, state: Progress) -> dict[str, float] | None:
        broadcast = self.algorithm.broadcast(state.server)
        squares: dict[str, float] = {}
        sums: dict[str, list[Vec]] = {}
        for client in range(len(self.problem)):
            kept = state.store.get(client)
            self.problem.network(client).load(kept.buffers)
            found = self.algorithm.stationarity(broadcast, kept.state, self.problem.task(client, state.round))
            if found is None:
                return None
            for name, vector in found.each.items():
                squares[name] = squares.get(name, 0.0) + vector.sq()
            for name, vector in found.summed.items():
                sums.setdefault(name, []).append(vector)
        squares |= {name: total(vectors).sq() for name, vectors in sums.items()}
        if not all(map(math.isfinite, squares.values())):
            return None
        norms = {name: math.sqrt(square) for name, square in squares.items()}
        return norms | {"total": math.sqrt(math.fsum(squares.values()))}

    def _advice(self, round: int, what: str) -> str:
        lr = self.problem.solver.lr * self.problem.solver.schedule(max(round - 1, 0), self.problem.rounds)
        return (
            f"{self.algorithm.label}, round {round}: {what}; try a smaller step (solver.lr, now {lr:g}) or "
            "check the scale of the inputs."
        )


def client_starts(problem: Problem, algorithm: Algorithm) -> InitClient:
    """How every client starts."""

    def begin(client: int) -> ClientState:
        start = problem.start(client)
        return ClientState(algorithm.client_init(problem.u0, start.v0), start.buffers)

    return begin


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold a Ctrl-C back while results are put in place and written, so that they are whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    before: Callable[[int, FrameType | None], Any] | int | None = signal.signal(
        signal.SIGINT, lambda number, frame: held.append((number, frame))
    )
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
