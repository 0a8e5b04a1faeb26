"""Study: the quantities of the analysis for one run at one moment, as theory.json holds them."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.curvature import NotTwiceDifferentiable
from fedapm.simulation import measures
from fedapm.simulation.problem import Problem
from fedapm.theory.bounds import Penalties, demanded, penalties
from fedapm.theory.constants import ClientConstants, chosen_clients, client_constants

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Hears how many clients are done, of how many."""


@dataclass(frozen=True)
class Study:
    """What can be known of a run where it stands. What a method does not have is None."""

    method: str
    label: str
    data: str
    seed: int
    round: int
    clients: int
    """m, the number of clients."""
    local_steps: float
    """Gradient steps of a client in one phase of a round, the median over clients."""
    constants: tuple[ClientConstants, ...]
    in_use: Penalties | None
    demanded: Penalties | None
    disagreement: float | None
    """See :func:`fedapm.simulation.measures.disagreement`."""
    cancels: bool
    """Whether the clients' pulls cancel exactly, so that the disagreement has no bound and is not a number."""
    lagrangian: float | None
    lyapunov: float | None
    primal: float | None
    stationarity: Mapping[str, float] | None

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Study:
        """A study as :meth:`as_dict` gave it; what is not known here is passed over."""
        known = {field.name: content[field.name] for field in fields(cls)}
        known["constants"] = tuple(ClientConstants(**entry) for entry in known["constants"])
        for name in ("in_use", "demanded"):
            known[name] = Penalties(**known[name]) if known[name] is not None else None
        return cls(**known)


def study(
    problem: Problem,
    algorithm: Algorithm,
    states: measures.States,
    server: State,
    round: int,
    *,
    clients: int = 5,
    samples: int = 1000,
    progress: Progress | None = None,
) -> Study:
    """Estimate and measure everything that can be known of a run where it stands.

    Args:
        problem: What is learnt.
        algorithm: The method.
        states: What each client keeps.
        server: What the server keeps.
        round: The last finished round.
        clients: How many clients' curvature is estimated.
        samples: At most so many of a client's samples are used for that; 0 uses all.
        progress: Hears how far it is.
    """
    broadcast = algorithm.broadcast(server)
    constants = _constants(problem, algorithm, states, broadcast, clients, samples, progress)
    in_use = penalties(algorithm, broadcast, problem.task(0, round))
    found = measures.lagrangian(problem, algorithm, states, round, broadcast, broadcast)
    ratio = measures.disagreement(problem, algorithm, states, round, broadcast)
    return Study(
        method=algorithm.name,
        label=algorithm.label,
        data=problem.federation.name,
        seed=problem.seed,
        round=round,
        clients=len(problem),
        local_steps=_local_steps(problem),
        constants=constants,
        in_use=in_use,
        demanded=demanded(constants) if in_use is not None and constants else None,
        disagreement=_finite(ratio),
        cancels=ratio is not None and math.isinf(ratio),
        lagrangian=_finite(found.get("lagrangian")),
        lyapunov=_finite(found.get("lyapunov")),
        primal=_finite(found.get("primal")),
        stationarity=measures.stationarity(problem, algorithm, states, round, broadcast),
    )


def _constants(
    problem: Problem,
    algorithm: Algorithm,
    states: measures.States,
    broadcast: State,
    clients: int,
    samples: int,
    progress: Progress | None,
) -> tuple[ClientConstants, ...]:
    chosen = chosen_clients(problem, clients)
    found: list[ClientConstants] = []
    try:
        for client in chosen:
            if progress is not None:
                progress(len(found), len(chosen))
            found.append(client_constants(problem, algorithm, client, states(client), broadcast, samples))
    except NotTwiceDifferentiable as error:
        logger.warning("%s", error)
        return ()
    if progress is not None:
        progress(len(found), len(chosen))
    return tuple(found)


def _local_steps(problem: Problem) -> float:
    size = problem.solver.batch_size
    batches = [math.ceil(problem.federation.size(k) / size) if size else 1 for k in range(len(problem))]
    return problem.solver.epochs * statistics.median(batches)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
