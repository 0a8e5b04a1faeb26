"""How many threads a run computes with: one where steps are small."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from fedapm.core.threads import one_thread
from fedapm.simulation.engines.auto import SMALL, step_operations
from fedapm.simulation.problem import Problem


def suitable_threads(problem: Problem) -> AbstractContextManager[None]:
    """What to compute a run in: with one thread where steps are small, or else with as many as there are.

    Args:
        problem: What is learnt.
    """
    with one_thread():
        return one_thread() if _small(problem) else nullcontext()


def _small(problem: Problem) -> bool:
    """Whether a step of one client is soon done on a processor."""
    if problem.device.type != "cpu":
        return False
    try:
        samples = problem.samples(problem.evaluated[0], "train")
        batch = samples[: problem.solver.batch_size or len(samples)]
        return step_operations(problem.network(problem.evaluated[0]).module, batch) <= SMALL
    except Exception:  # the run itself meets it again and says it as it should be said
        return False
