"""Runs for tests: a method on a problem, and what stands at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.record import RoundRecord
from fedapm.simulation.callbacks import History
from fedapm.simulation.engines.base import LocalEngine, Resumed
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.loop import Callback, Loop, Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.state import RunState


@dataclass(frozen=True)
class Picture:
    """A run at one moment: the server's state and where the clients' are."""

    round: int
    server: State
    store: Any
    state: RunState


def picture(state: RunState, engine: LocalEngine) -> Picture:
    """Where a run stands."""
    return Picture(state.round, state.server, engine.store, state)


def play(
    problem: Problem,
    method: Algorithm,
    schedule: Schedule,
    callbacks: Sequence[Callback] = (),
    engine: LocalEngine | None = None,
    resume: Callable[[Loop, LocalEngine], RunState] | None = None,
) -> tuple[Picture, list[RoundRecord]]:
    """Run a method to the end, or go on from where ``resume`` says."""
    runs = engine or SequentialEngine(problem, method)
    history = History()
    loop = Loop(problem, method, schedule, runs, [history, *callbacks])
    resumed = Resumed(resume(loop, runs)) if resume is not None else None
    return picture(loop.run(resumed), runs), history.records
