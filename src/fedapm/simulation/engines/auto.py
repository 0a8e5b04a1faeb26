"""Which engine suits a run, and why.

Engines that could differ in a last digit are never chosen by a clock: whether clients are computed together follows
from the network and the method. A short measurement decides only between one process and several, which agree to the
bit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from fedapm.core.algorithm import Algorithm
from fedapm.simulation.batched import network as together
from fedapm.simulation.engines import processes, vectorized
from fedapm.simulation.engines.base import Engine
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import Store

EngineName = Literal["auto", "sequential", "vectorised", "processes"]
SMALL = 5_000_000
"""Operations in one step of one client below which a core spends its time on starting operations, not on them."""
FEWEST = 10
"""Clients in a round from which computing them together pays."""
TRIED = 3
"""Clients that are tried together before it is decided."""
SHORT = 0.25
"""Seconds a round must take before it is worth dealing out to worker processes."""


@dataclass(frozen=True)
class EngineChoice:
    """An engine and the reason for it."""

    engine: Engine
    why: str


def engine(
    name: EngineName,
    problem: Problem,
    algorithm: Algorithm,
    store: Store,
    cohort: list[int],
    workers: int | None = None,
) -> EngineChoice:
    """The engine of that name, or the one that suits; ``cohort`` are clients as a round selects them."""
    if name == "sequential":
        return EngineChoice(SequentialEngine(problem, algorithm), "as set")
    if name == "vectorised":
        return EngineChoice(VectorizedEngine(problem, algorithm), "as set")
    if name == "processes":
        made = ProcessEngine(problem, algorithm, workers)
        return EngineChoice(made, f"{made.count} workers, as set")
    try:
        small = _small(problem, algorithm, store, cohort)
        return (
            small if isinstance(small, EngineChoice) else _measured(problem, algorithm, store, cohort, workers, small)
        )
    except Exception as error:  # the run itself meets it again and says it as it should be said
        return EngineChoice(SequentialEngine(problem, algorithm), f"a first try ended with {type(error).__name__}")


def _small(problem: Problem, algorithm: Algorithm, store: Store, cohort: list[int]) -> EngineChoice | str:
    """Clients together where a step is small and the method allows it; or what speaks against it."""
    if (reason := vectorized.unable(problem)) is not None:
        return reason
    network = problem.network(0)
    if not together.linear(network.module):
        return "the network is not made of fully connected layers alone"
    samples = problem.federation[cohort[0]].train
    batch = min(problem.solver.batch_size or len(samples), len(samples))
    parameters = sum(p.numel() for p in network.module.parameters())
    operations = 6 * batch * parameters
    if operations > SMALL:
        return f"a step of one client is {operations / 1e6:.0f} million operations"
    if len(cohort) < FEWEST:
        return f"a round has {len(cohort)} clients"
    made = VectorizedEngine(problem, algorithm)
    # a few clients tried together show what the method takes; nothing of it is kept
    made.run_round(cohort[:TRIED], algorithm.broadcast(algorithm.server_init(problem.u0)), store, 0)
    if made.fallback_reasons:
        return made.fallback_reasons[0]
    why = f"a step of one client is {operations / 1e6:.2f} million operations, so clients are trained side by side"
    return EngineChoice(made, why)


def _measured(
    problem: Problem, algorithm: Algorithm, store: Store, cohort: list[int], workers: int | None, not_together: str
) -> EngineChoice:
    """One process or several, by how long one client takes."""
    one = SequentialEngine(problem, algorithm)
    against = processes.unable(problem)
    count = min(workers or processes.cores(), len(cohort))
    if against is None and count < 2:
        against = "there is one processor" if len(cohort) > 1 else "there is one client in a round"
    if against is not None:
        return EngineChoice(one, against)
    sizes = {k: len(problem.federation[k].train) for k in cohort}
    smallest = min(cohort, key=lambda k: sizes[k])
    broadcast = algorithm.broadcast(algorithm.server_init(problem.u0))
    list(one.train([smallest], broadcast, store, 0))  # the first time is slower
    began = time.perf_counter()
    list(one.train([smallest], broadcast, store, 0))
    seconds = time.perf_counter() - began
    round = seconds * sum(sizes.values()) / max(sizes[smallest], 1)
    if round < SHORT:
        return EngineChoice(
            one, f"a round takes {round * 1e3:.0f} ms, too little to deal out to processes; {not_together}"
        )
    return EngineChoice(
        ProcessEngine(problem, algorithm, count), f"{count} workers, because a round takes {round:.2g} s on one"
    )
