"""Bounds: what the paper's descent lemma demands of ρ and σ, given the Lipschitz constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedapm.algorithms import FedAPM
from fedapm.core.algorithm import Algorithm, State
from fedapm.core.task import Task
from fedapm.theory.constants import ClientConstants


@dataclass(frozen=True)
class Penalties:
    """ρ and σ: those in use, or the least that the analysis allows."""

    rho: float
    sigma: float

    def meet(self, demanded: Penalties) -> bool:
        """Whether they are within 3α·max(L_u, L_uv) ≤ ρ ≤ 15/8·σ and σ ≥ α·L_v, given what is demanded at least."""
        return self.rho >= demanded.rho and self.sigma >= max(demanded.sigma, least_sigma(self.rho))


def least_sigma(rho: float) -> float:
    """The least σ that goes with a ρ: ρ ≤ 15/8·σ."""
    return 8 / 15 * rho


def demanded(constants: Sequence[ClientConstants]) -> Penalties:
    """The least ρ and σ under which the Lyapunov function must go down.

    "Sufficient descent" asks for 3·α_i·max(L_u, L_uv) ≤ ρ ≤ 15/8·σ and "relative error" for σ ≥ α_i·L_v, for every
    client.

    Args:
        constants: Those of some clients.
    """
    rho = max(3 * c.alpha * max(c.u or 0.0, c.uv or 0.0) for c in constants)
    return Penalties(rho, max(least_sigma(rho), *(c.alpha * (c.v or 0.0) for c in constants)))


def penalties(algorithm: Algorithm, broadcast: State, task: Task) -> Penalties | None:
    """ρ and σ in use, or None for methods that the analysis is not about.

    Args:
        algorithm: The method.
        broadcast: What the server would send now.
        task: A client's task.
    """
    method = algorithm.plain
    if not isinstance(method, FedAPM):
        return None
    return Penalties(method.penalty(broadcast, task), method.proximity(task))
