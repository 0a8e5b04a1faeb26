"""Whether fedapm and the bare loop compute the same: both on the same clients and batches, in double precision.

In single precision rounding decides now and then which pixel of a pooling window is the largest, and from there on two
correct programs go apart. In double precision it does not, and a difference would be a difference in mathematics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from bare import METHODS as BARE
from ours import METHODS as OURS
from ours import loop, one_round
from torch import Tensor
from workloads import CNN, TINY, network

ROUNDS = 2
ALLOWED = 1e-9
CASES = (
    (replace(CNN, clients=4, samples=100, tests=10, selected=2), ("sequential",)),
    (replace(TINY, clients=50, selected=20), ("sequential", "vectorized")),
)


def gaps() -> list[dict[str, Any]]:
    """How far each engine's shared model is from the bare loop's, as a share of how far that has moved."""
    found = []
    with double():
        for work, engines in CASES:
            start = {n: p.detach().clone() for n, p in network(work).named_parameters()}
            for method in BARE:
                bare = BARE[method](work)
                for number in range(1, ROUNDS + 1):
                    bare.round(number)
                for engine in engines:
                    runs = loop(work, OURS[method](), engine)
                    progress = runs.state
                    for _ in range(ROUNDS):
                        progress = one_round(runs, progress)
                    gap = distance(progress.server.u, bare.shared) / distance(bare.shared, start)
                    found.append({"workload": work.name, "method": method, "engine": engine, "gap": gap})
    return found


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """‖one − other‖ over the tensors of the first."""
    return sum(float((tensor - other[name]).square().sum()) for name, tensor in one.items()) ** 0.5


@contextmanager
def double() -> Iterator[None]:
    """New tensors are of double precision for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
