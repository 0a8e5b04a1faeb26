"""Constants: the Lipschitz constants L_u, L_v and L_uv of some clients' gradients, estimated where a run stands."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedapm.core import random
from fedapm.core.algorithm import Algorithm, State
from fedapm.core.curvature import Hessian
from fedapm.core.task import LocalTask
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import ClientState

PURPOSE = "theory"
"""What the random streams of this package are keyed by."""


@dataclass(frozen=True)
class ClientConstants:
    """How fast one client's gradients change at its present model; None for a block the method does not have."""

    client: str
    alpha: float
    """α_i."""
    samples: int
    """The training samples that were used, of all the client has."""
    available: int
    u: float | None
    """L_u: ‖∇²_uu f_i‖."""
    v: float | None
    """L_v: ‖∇²_vv f_i‖."""
    uv: float | None
    """L_uv: ‖∇²_uv f_i‖, which is also L_vu."""
    converged: bool = True
    """Whether the iteration came to rest for every block; where it did not, the true numbers may be larger."""


def chosen_clients(problem: Problem, count: int) -> list[int]:
    """Which clients are looked at: a draw that depends on the run's seed alone.

    Args:
        problem: What is learnt.
        count: How many; all of them if there are fewer.
    """
    order = random.numpy_generator(problem.seed, f"{PURPOSE} clients").permutation(len(problem))
    return sorted(int(k) for k in order[:count])


def client_constants(
    problem: Problem, algorithm: Algorithm, client: int, state: ClientState, broadcast: State, most_samples: int = 0
) -> ClientConstants:
    """Estimate the constants of one client, at the model that is evaluated for it.

    Args:
        problem: What is learnt.
        algorithm: The method.
        client: The client's position.
        state: What it keeps.
        broadcast: What the server would send now.
        most_samples: Use no more than so many of its training samples, drawn by the run's seed; 0 uses all.
    """
    u, v = algorithm.client_model(broadcast, state.state, algorithm.views[0])
    problem.network(client).load(state.buffers)
    task = _smaller(problem.task(client, 0), most_samples)
    hessian = Hessian(task, u | v)
    blocks = {"u": (u.names, u.names), "v": (v.names, v.names), "uv": (u.names, v.names)}
    norms = {
        name: hessian.norm(rows, columns, random.torch_generator(problem.seed, PURPOSE, client, name))
        for name, (rows, columns) in blocks.items()
        if rows and columns
    }
    values = {name: norms[name].value if name in norms else None for name in blocks}
    return ClientConstants(
        problem.federation[client].id,
        task.alpha,
        len(task.train),
        len(problem.federation[client].train),
        **values,
        converged=all(norm.converged for norm in norms.values()),
    )


def _smaller(task: LocalTask, most: int) -> LocalTask:
    if not 0 < most < len(task.train):
        return task
    stream = random.torch_generator(task.seed, f"{PURPOSE} samples", task.client)
    picked = torch.randperm(len(task.train), generator=stream)[:most].sort().values
    return replace(task, train=task.train[picked.to(task.train.targets.device)])
