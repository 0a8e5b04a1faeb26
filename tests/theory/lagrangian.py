"""The quantities of the paper's analysis for a picture of a run."""

from __future__ import annotations

from fedapm.algorithms import FedAPM
from fedapm.core.vec import Vec, mean
from fedapm.simulation import measures
from fedapm.simulation.problem import Problem
from tests.helpers.running import Picture


def lagrangian(problem: Problem, method: FedAPM, at: Picture) -> float:
    """L = Σ α_i f_i(v_i, u_i) + ⟨π_i, u_i − u⟩ + ρ/2·‖u_i − u‖²."""
    return _measured(problem, method, at)["lagrangian"]


def lyapunov(problem: Problem, method: FedAPM, at: Picture) -> float:
    """L̃ = L + Σ 29/(ρ(1 − μ))·ξ_i, which does not increase where 3α·max(L_u, L_uv) ≤ ρ ≤ 15/8·σ."""
    return _measured(problem, method, at)["lyapunov"]


def consensus_error(problem: Problem, method: FedAPM, at: Picture) -> float:
    """‖u − (1/m)·Σ (u_i + π_i/ρ)‖: zero, however few clients take part, because the server keeps the mean of all."""
    states = [at.store.get(client).state for client in range(len(problem))]
    gap: Vec = at.server.u - mean(s.z for s in states)
    return gap.norm()


def _measured(problem: Problem, method: FedAPM, at: Picture) -> dict:
    return measures.lagrangian(problem, method, at.store.get, at.round, at.server, at.server)
