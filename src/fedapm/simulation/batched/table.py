"""Table: the training samples of all clients side by side, so that batches are taken of them at once."""

from __future__ import annotations

import torch
from torch import Tensor

from fedapm.simulation.problem import Problem

MOST = 1 << 25
"""Bytes up to which samples are kept once more."""
Table = tuple[Tensor, ...]
"""Each input, and the targets: (clients, samples, …)."""


def training_table(problem: Problem) -> Table | None:
    """All clients' training samples on the device, once more.

    Args:
        problem: What is learnt.

    Returns:
        None where clients are not in memory, differ in size or form, or have too much.
    """
    federation = problem.federation
    if federation.lazy_clients is not None or len({*(federation.sizes or ())}) != 1:
        return None
    parts = [(*client.train.inputs, client.train.targets) for client in federation.clients]
    if sum(values.nbytes for part in parts for values in part) > MOST:
        return None
    if len({tuple((values.shape, values.dtype) for values in part) for part in parts}) != 1:
        return None
    return tuple(torch.stack(column).to(problem.device) for column in zip(*parts, strict=True))
