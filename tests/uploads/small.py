"""A federation small enough to run every method with every transform."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedapm.algorithms import METHODS, PRESETS
from fedapm.core.algorithm import Algorithm
from fedapm.core.record import RoundRecord
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.data import IID, Federation
from fedapm.data.sets.digits import federation
from fedapm.models import DigitsNet
from fedapm.simulation import checkpoint
from fedapm.simulation.engines.base import LocalEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from fedapm.uploads import UploadSettings, transmitted
from tests.helpers.running import Picture, play

CLIENTS = 6
SENDING = sorted(set(METHODS | PRESETS) - {"local"})
TRANSFORMS: dict[str, dict[str, Any]] = {
    "clip": {"clip": 0.05},
    "top-k": {"compress": "top-k", "keep": 0.05},
    "low-rank": {"compress": "low-rank", "rank": 1},
    "bf16": {"round_to": "bf16"},
    "int8": {"round_to": "int8"},
    "all": {"clip": 0.2, "compress": "top-k", "keep": 0.2, "round_to": "int8"},
}
"""The settings of [upload] by a name for tests; each withholds something of most messages."""


def network() -> torch.nn.Module:
    """In double precision, so that sums taken in another order still agree closely."""
    return DigitsNet(width=16, features=8).double()


@lru_cache
def clients() -> Federation:
    made = federation(IID(CLIENTS), test_fraction=0.2, seed=0)
    return Federation.from_clients(
        {c.id: (c.train.inputs[0][::8].double(), c.train.targets[::8]) for c in made.clients},
        test={c.id: (c.test.inputs[0][:5].double(), c.test.targets[:5]) for c in made.clients},
    )


def problem_of(method: Algorithm, rounds: int = 10) -> Problem:
    solver = SGDConfig(lr=0.1, epochs=1, batch_size=15)
    rule = SplitRule(preset="output")
    return Problem(clients(), network, rule, adapt=method.adapt, solver=solver, rounds=rounds)


def sending(name: str, transform: dict[str, Any], **options: Any) -> Algorithm:
    """A method with a transform."""
    return transmitted((METHODS | PRESETS)[name](**options), UploadSettings(**transform))


def run(
    method: Algorithm, rounds: int = 10, fraction: float = 0.5, kind: type[LocalEngine] = SequentialEngine
) -> tuple[Picture, list[RoundRecord]]:
    problem = problem_of(method, rounds)
    engine = kind(problem, method)
    try:
        return play(problem, method, Schedule(rounds, Sampling(fraction), 10**9), engine=engine)
    finally:
        engine.close()


def stopped_and_resumed(method: Algorithm, half: int, rounds: int, folder: Path) -> Picture:
    """A run that stopped half-way and goes on from its checkpoint with another engine."""
    problem = problem_of(method, rounds)
    first, later = SequentialEngine(problem, method), SequentialEngine(problem, method)
    before, _ = play(problem, method, Schedule(half, Sampling(0.5), 10**9), engine=first)
    path = checkpoint.save(folder, before.state, first.store)
    schedule = Schedule(rounds, Sampling(0.5), 10**9)
    after, _ = play(
        problem, method, schedule, engine=later, resume=lambda loop, e: checkpoint.load(path, loop.state, e.store)
    )
    return after
