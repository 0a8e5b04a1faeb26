"""How many threads compute: one where steps are small.

A small operation takes less time than dealing it out, and where other programs are busy, threads that wait for each
other make it many times slower.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedapm.simulation.engines.auto import SMALL, step_operations
from fedapm.simulation.problem import Problem

ASKED = "OMP_NUM_THREADS"
"""The variable that says how many the user wants."""


@contextmanager
def suitable_threads(problem: Problem) -> Iterator[None]:
    """Compute with one thread for the time of a ``with`` block, where steps are small and nobody asked for more.

    Args:
        problem: What is learnt.
    """
    before = torch.get_num_threads()
    if before == 1 or ASKED in os.environ or not _small(problem):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
