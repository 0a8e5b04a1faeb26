"""The quantities of the paper's analysis, computed for a run of FedAPM on any problem.

They need every client's full gradient or loss, so they belong in tests and in small studies.
"""

from __future__ import annotations

import math

from fedapm.algorithms import FedAPM
from fedapm.core.vec import Vec, mean
from fedapm.simulation.problem import Problem
from tests.helpers.running import Picture


def lagrangian(problem: Problem, method: FedAPM, at: Picture) -> float:
    """L = Σ α_i f_i(v_i, u_i) + ⟨π_i, u_i − u⟩ + ρ/2·‖u_i − u‖²."""
    terms = []
    for client in range(len(problem)):
        kept = at.store.get(client)
        s, task = kept.state, problem.task(client, at.round)
        problem.network(client).load(kept.buffers)
        gap = s.u - at.server.u
        terms.append(task.alpha * task.value(s.u, s.v) + s.pi @ gap + 0.5 * method.rho * gap.sq())
    return math.fsum(terms)


def lyapunov(problem: Problem, method: FedAPM, at: Picture) -> float:
    """L̃ = L + Σ 29/(ρ(1 − μ))·ξ_i, which does not increase where 3α·max(L_u, L_uv) ≤ ρ ≤ 15/8·σ."""
    slack = math.fsum(float(at.store.get(client).state.xi) for client in range(len(problem)))
    return lagrangian(problem, method, at) + 29 / (method.rho * (1 - method.mu)) * slack


def consensus_error(problem: Problem, method: FedAPM, at: Picture) -> float:
    """‖u − (1/m)·Σ (u_i + π_i/ρ)‖: zero, however few clients take part, because the server keeps the mean of all."""
    states = [at.store.get(client).state for client in range(len(problem))]
    gap: Vec = at.server.u - mean(s.z for s in states)
    return gap.norm()
