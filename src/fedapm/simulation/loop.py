"""The rounds: select, broadcast, train, add up, update, evaluate, record."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

from fedapm.core.algorithm import NUMBERS, Aggregate, Algorithm, State
from fedapm.core.metrics import summarize
from fedapm.core.record import Closing, Evaluation, RoundRecord
from fedapm.errors import Diverged, Interrupted, StopRun
from fedapm.simulation.engines.base import Engine, Resumed, RoundResult
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.state import RunState
from fedapm.simulation.stores.base import Undo

logger = logging.getLogger(__name__)


class Callback:
    """Something that follows a run: a record, a checkpoint, a progress bar. Override what you need."""

    def check(self, problem: Problem) -> None:
        """Refuse a run that cannot be followed, before anything of it is written."""

    def on_resume(self, records: Sequence[RoundRecord]) -> None:
        """A run goes on after these rounds; as at the end of a round, ``StopRun`` ends it here."""

    def on_server_update(self, state: RunState, record: RoundRecord) -> None:
        """A round's results are in place; all of its record is known but the evaluation and the drift."""

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """A round is finished, evaluated where it is due, and recorded; raise ``StopRun`` to end here."""

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """The closing phase is over: the last round's record, again, with the scores after it."""

    def on_run_end(self, state: RunState, status: str) -> None:
        """The run ends: complete, interrupted or diverged."""


@dataclass(frozen=True)
class Schedule:
    """How many rounds, with which clients, and how often models are evaluated."""

    rounds: int
    sampling: Sampling
    evaluate_every: int = 1
    stationarity: bool = False
    theory: bool = False
    closing_epochs: int = 0
    """Epochs of the closing phase, in which the evaluated clients continue their personal part after the last round."""

    def evaluates(self, round: int) -> bool:
        """Whether models are evaluated after a round; the first and the last always are."""
        return round % self.evaluate_every == 0 or round == self.rounds


class Nobody:
    """A round in which nobody takes part, and nobody keeps anything.

    Args:
        form: What sums look like: all of their vectors are zero; None where there are no sums.
    """

    def __init__(self, form: Aggregate | None = None) -> None:
        self.total, self.abandoned = Aggregate({}, 0.0, 0), form is None
        if form is not None:
            zeros = {name: vector if name == NUMBERS else vector.zeros() for name, vector in form.sums.items()}
            self.total = replace(form, sums=zeros)
        self.good: list[int] = []
        self.bytes_up = self.bytes_told = 0
        self.local: dict[str, float | int] | None = None

    def screen(self, method: Algorithm, server: State) -> None:
        """There is nothing to look at."""

    def commit(self) -> Undo:
        """Nothing changes."""
        return lambda: None


class Loop:
    """Runs a method on a problem, round by round.

    Args:
        problem: What is learnt.
        algorithm: The method.
        schedule: How long and with whom.
        engine: What runs the clients and owns their states.
        callbacks: What follows the run, in this order.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        schedule: Schedule,
        engine: Engine,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.problem, self.algorithm, self.schedule = problem, algorithm, schedule
        self.engine, self.callbacks = engine, callbacks
        schedule.sampling.size(len(problem))
        self.state = RunState(0, algorithm.server_init(problem.u0))
        self._record: RoundRecord = {}
        self._selected: tuple[int, list[int]] = 0, []

    def run(self, resumed: Resumed | None = None, records: Sequence[RoundRecord] = ()) -> RunState:
        """Run to the last round, or until a callback stops the run.

        Args:
            resumed: Where an earlier process stopped; from the start if not given.
            records: The records of the rounds there are already.

        Returns:
            Where the run stands at its end.
        """
        status = "interrupted"
        try:
            if resumed is None:
                began = time.perf_counter()
                self._finish(self.state, self._start_record(self.state, self.state), began)
            else:
                self._resume(resumed, records)
            while self.state.round < self.schedule.rounds and self.state.stopped is None:
                if (stop := self._stop(self.state)) is not None:
                    self.state = replace(self.state, stopped=stop)
                    break
                self._round(self.state)
            if self.schedule.closing_epochs and self.algorithm.personal_field is not None:
                self._close(self.state)
            status = "complete"
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted after round {self.state.round} of {self.schedule.rounds}.") from None
        except Diverged:
            status = "diverged"
            raise
        finally:
            with uninterrupted():
                for callback in self.callbacks:
                    callback.on_run_end(self.state, status)
        return self.state

    def _resume(self, resumed: Resumed, records: Sequence[RoundRecord]) -> None:
        if resumed.record is None:
            self.state = resumed.state
            self._record = records[-1] if records else {}
            if self.state.stopped is None:
                self._notify(self.state, lambda callback: callback.on_resume(records))
            return
        # the round's results are in the checkpoint, but it was not evaluated and recorded any more
        self.state = RunState(max(resumed.state.round - 1, 0), resumed.state.server)
        self._complete(resumed.state, resumed.record, time.perf_counter())

    def _round(self, before: RunState) -> None:
        began = time.perf_counter()
        round = before.round + 1
        selected = self.select(round)
        if round < self.schedule.rounds:
            self.engine.read_ahead(self.select(round + 1))
        broadcast = self.algorithm.broadcast(before.server)
        able = self.engine.able(round, selected, broadcast)
        result: RoundResult = Nobody()
        if able or not selected:
            # where nobody is drawn, one client works in vain to give the sums their form
            result = self.engine.run_round(round, able or [0], broadcast)
            if not result.good and not result.abandoned:
                raise Diverged(self._advice(round, "every selected client's update was not finite"))
        if not selected:
            result = Nobody(result.total)
        if self.algorithm.screens and not result.abandoned:
            result.screen(self.algorithm, before.server)
            if able and not result.good:
                raise Diverged(
                    self._advice(round, "every selected client's update was far longer than usual (upload.norm_limit)")
                )
        server, m = before.server, len(self.problem)
        if result.abandoned:
            server = self.algorithm.without_round(server, m)
        else:
            server = self.algorithm.server_update(server, result.total, m)
        after = RunState(
            round,
            server,
            before.bytes_up + result.bytes_up,
            before.bytes_down + self._bytes_down(round, able, broadcast) + result.bytes_told,
        )
        undo: Undo | None = None
        try:
            with uninterrupted():
                undo = result.commit()
            self._finish(after, self._start_record(after, before, selected, result), began)
        except BaseException:
            # the round is not recorded, so it must not have happened: whoever saves now saves the round before
            if undo is not None and self.state is before:
                with uninterrupted():
                    undo()
            raise

    def _bytes_down(self, round: int, selected: Sequence[int], broadcast: State) -> int:
        """What the clients of a round receive."""
        change = self.algorithm.change_nbytes(broadcast)
        if change == broadcast.nbytes:
            return change * len(selected)
        heard = {*self.engine.heard(round, self.select(round - 1) if round > 1 else [])}
        return sum(change if k in heard else broadcast.nbytes for k in selected)

    def _stop(self, state: RunState) -> str | None:
        """Why the method ends the run after a round."""
        m = len(self.problem)
        if (nobody := self.algorithm.abstains) is not None and len(self._abstaining(state)) == m:
            return nobody
        return self.algorithm.stop_before(state.round + 1, m)

    def _abstaining(self, state: RunState) -> list[int]:
        """The clients that take part in no further round."""
        everyone = range(len(self.problem))
        able = {*self.engine.able(state.round + 1, everyone, self.algorithm.broadcast(state.server))}
        return [client for client in everyone if client not in able]

    def _able(self, state: RunState) -> list[int]:
        """The clients that take part in the next round."""
        return self.engine.able(state.round + 1, self.select(state.round + 1), self.algorithm.broadcast(state.server))

    def select(self, round: int) -> list[int]:
        """The clients of a round; drawn once for the round before, which announces it, and for the round itself."""
        if self._selected[0] != round:
            self._selected = round, self.schedule.sampling.draw(len(self.problem), self.problem.seed, round)
        return list(self._selected[1])

    def _start_record(
        self, after: RunState, before: RunState, selected: Sequence[int] = (), result: RoundResult | None = None
    ) -> RoundRecord:
        used = {*result.good} if result is not None else set()
        record: RoundRecord = {
            "round": after.round,
            "selected": list(selected),
            "dropped": [k for k in selected if k not in used],
            "bytes_up": after.bytes_up - before.bytes_up,
            "bytes_down": after.bytes_down - before.bytes_down,
            "total_bytes_up": after.bytes_up,
            "total_bytes_down": after.bytes_down,
            "drift": None,
            "local": result.local if result is not None else None,
        }
        if result is not None and after.server.numbers:
            record["server"] = after.server.numbers
        if self.algorithm.abstains is not None:
            record["abstaining"] = self._abstaining(after)
        if self.schedule.stationarity:
            broadcast = self.algorithm.broadcast(after.server)
            record["stationarity"] = self.engine.stationarity(after.round, broadcast)
        if self.schedule.theory:
            sent = [self.algorithm.broadcast(state.server) for state in (before, after)]
            record["theory"] = self.engine.theory(after.round, *sent)
        return record

    def _finish(self, after: RunState, record: RoundRecord, began: float) -> None:
        for callback in self.callbacks:
            callback.on_server_update(after, record)
        self._complete(after, record, began)

    def _complete(self, after: RunState, record: RoundRecord, began: float) -> None:
        """Evaluate a round whose results are in place, and hand its record to the callbacks."""
        last = after.round >= self.schedule.rounds or self._stop(after) is not None
        self.engine.prefetch(after.round + 1, [] if last else self._able(after), last)
        record["evaluations"] = self._evaluate(after) if last or self.schedule.evaluates(after.round) else None
        record["drift"] = self.engine.drift(after.server) if after.round else None
        with uninterrupted():
            self._notify(after, lambda callback: callback.on_round_end(after, record, time.perf_counter() - began))
        self._record = record

    def _close(self, state: RunState) -> None:
        """The closing phase: the personal part of the evaluated clients again, at the last round's shared model."""
        began = time.perf_counter()
        broadcast, epochs = self.algorithm.broadcast(state.server), self.schedule.closing_epochs
        clients = len(self.problem.evaluated)
        logger.info("closing phase: %d clients continue their personal part for %d epoch(s)", clients, epochs)
        self.engine.personalize(state.round, broadcast, epochs)
        closing: Closing = {
            "epochs": epochs,
            "bytes_down": broadcast.nbytes * clients,
            "before": self._record.get("evaluations"),
        }
        record: RoundRecord = {**self._record, "evaluations": self._evaluate(state), "closing": closing}
        with uninterrupted():
            for callback in self.callbacks:
                callback.on_closing(state, record, time.perf_counter() - began)

    def _notify(self, state: RunState, call: Callable[[Callback], None]) -> None:
        """Call every callback, and only then move on; the first that asks for it ends the run."""
        reasons = []
        for callback in self.callbacks:
            try:
                call(callback)
            except StopRun as stop:
                reasons.append(str(stop))
        self.state = replace(state, stopped=reasons[0]) if reasons else state

    def _evaluate(self, state: RunState) -> dict[str, Evaluation]:
        broadcast = self.algorithm.broadcast(state.server)
        evaluations = {}
        for view in self.algorithm.views:
            rows = self.engine.evaluate(broadcast, view)
            if not any(math.isfinite(row["train_loss"] or 0.0) for row in rows):
                raise Diverged(self._advice(state.round, "no client's training loss is finite"))
            evaluations[view] = summarize(rows, self.problem.metrics)
        return evaluations

    def _advice(self, round: int, what: str) -> str:
        lr = self.problem.solver.lr * self.problem.solver.schedule(max(round - 1, 0), self.problem.rounds)
        return (
            f"{self.algorithm.label}, round {round}: {what}; try a smaller step (solver.lr, now {lr:g}) or "
            "check the scale of the inputs."
        )


SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""What asks a process to end; only those that a Python function answers are ever held back."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold a Ctrl-C back while results are put in place and written, so that they are whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    answers = {number: answer for number in SIGNALS if callable(answer := signal.getsignal(number))}
    for number in answers:
        signal.signal(number, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        for number, answer in answers.items():
            signal.signal(number, answer)
    if held:
        answers[signal.Signals(held[0][0])](*held[0])
