"""Which engine suits a run, and why.

Engines that could differ in a last digit are never chosen by a clock: whether clients are computed together follows
from the network and the method. A short measurement decides only between one process and several, which agree to the
bit.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedapm.core.algorithm import Algorithm
from fedapm.core.recurrent import later_products, recurrent_layers, written_out
from fedapm.core.samples import Samples
from fedapm.simulation.engines import processes, vectorized
from fedapm.simulation.engines.base import LocalEngine
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.ray_cluster import RayEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.problem import Problem
from fedapm.simulation.workers import PATIENCE, cores

EngineName = Literal["auto", "sequential", "vectorized", "processes", "ray"]
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

    engine: LocalEngine
    why: str


def choose_engine(
    name: EngineName,
    problem: Problem,
    algorithm: Algorithm,
    cohort: list[int],
    workers: int | None = None,
    patience: float = PATIENCE,
    ray_address: str | None = None,
) -> EngineChoice:
    """The engine of that name, or the one that suits.

    Args:
        name: An engine, or "auto".
        problem: What is learnt.
        algorithm: The method.
        cohort: Clients as a round selects them, to try the work on.
        workers: Worker processes; as many as there are processors if not given.
        patience: Seconds without any processor time after which a worker process is replaced.
        ray_address: The Ray cluster, for the engine of that name; one on this machine if not given.
    """
    if name == "sequential":
        return EngineChoice(SequentialEngine(problem, algorithm), "as set")
    if name == "vectorized":
        return EngineChoice(VectorizedEngine(problem, algorithm), "as set")
    if name == "processes":
        engine = ProcessEngine(problem, algorithm, workers, patience=patience)
        return EngineChoice(engine, f"{engine.count} workers, as set")
    if name == "ray":
        cluster = RayEngine(problem, algorithm, workers, ray_address, patience)
        return EngineChoice(cluster, f"{cluster.count} workers of {ray_address or 'a cluster on this machine'}, as set")
    try:
        small = _vectorized_if_small(problem, algorithm, cohort)
        if isinstance(small, EngineChoice):
            return small
        return _by_time(problem, algorithm, cohort, workers, patience, small)
    except Exception as error:  # the run itself meets it again and says it as it should be said
        return EngineChoice(SequentialEngine(problem, algorithm), f"a first try ended with {type(error).__name__}")


def _vectorized_if_small(problem: Problem, algorithm: Algorithm, cohort: list[int]) -> EngineChoice | str:
    """Clients side by side where a step is small and the method allows it; or what speaks against it."""
    if (reason := vectorized.unable(problem)) is not None:
        return reason
    module, samples = problem.network(0).module, problem.samples(cohort[0], "train")
    operations = step_operations(module, samples[: problem.solver.batch_size or len(samples)])
    if operations > SMALL:
        return f"a step of one client is {operations / 1e6:.0f} million operations"
    if len(cohort) < FEWEST:
        return f"a round has {len(cohort)} clients"
    engine = VectorizedEngine(problem, algorithm)
    # a few clients tried side by side show what the method takes, and one of them is compared with itself alone;
    # nothing of it is kept
    engine.run_round(0, cohort[:TRIED], algorithm.broadcast(algorithm.server_init(problem.u0)))
    if engine.fallback_reasons:
        return engine.fallback_reasons[0]
    why = f"a step of one client is {operations / 1e6:.2f} million operations, so clients are trained side by side"
    return EngineChoice(engine, why)


def step_operations(module: nn.Module, batch: Samples) -> int:
    """Operations of a step in products and convolutions: of the forward pass, and twice as many of the backward pass.

    Args:
        module: The network.
        batch: The samples of a step.

    Returns:
        Their number. Of a recurrent layer one step of the sequence counts: so much is started at a time.
    """
    module.eval()
    later: list[int] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        # packed sequences are not computed together in any case
        if isinstance(layer, nn.RNNBase) and isinstance(inputs[0], Tensor):
            later.append(later_products(layer, inputs[0]))

    layers = recurrent_layers(module)
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(note).remove)
        # written out, because torch's kernels are counted on some devices only
        with torch.no_grad(), written_out(module), FlopCounterMode(display=False) as counter:
            module(*batch.inputs)
    return 3 * (int(counter.get_total_flops()) - 2 * sum(later))


def _by_time(
    problem: Problem,
    algorithm: Algorithm,
    cohort: list[int],
    workers: int | None,
    patience: float,
    not_vectorized: str,
) -> EngineChoice:
    """One process or several, by how long one client takes."""
    sequential = SequentialEngine(problem, algorithm)
    against = processes.unable(problem)
    count = min(workers or cores(), len(cohort))
    if against is None and count < 2:
        against = "there is one processor" if len(cohort) > 1 else "there is one client in a round"
    if against is not None:
        return EngineChoice(sequential, against)
    sizes = {k: problem.federation.size(k) for k in cohort}
    smallest = min(cohort, key=lambda k: sizes[k])
    broadcast = algorithm.broadcast(algorithm.server_init(problem.u0))
    sequential.run_round(0, [smallest], broadcast)  # the first time is slower
    began = time.perf_counter()
    sequential.run_round(0, [smallest], broadcast)
    seconds = time.perf_counter() - began
    round = seconds * sum(sizes.values()) / max(sizes[smallest], 1)
    if round < SHORT:
        why = f"a round takes {round * 1e3:.0f} ms, too little to deal out to processes; {not_vectorized}"
        return EngineChoice(sequential, why)
    why = f"{count} workers, because a round takes {round:.2g} s on one"
    return EngineChoice(ProcessEngine(problem, algorithm, count, patience=patience), why)
