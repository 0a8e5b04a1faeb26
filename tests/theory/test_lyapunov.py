"""Lemma "sufficient descent": under the stated bounds on ρ and σ the Lyapunov function does not increase."""

from itertools import pairwise

import numpy as np
import pytest

from fedapm import FedAPM
from fedapm.core.solver import SGDConfig
from tests.helpers.problems import convex, run
from tests.theory.lagrangian import consensus_error, lagrangian, lyapunov
from tests.theory.test_bounds import bounded


@pytest.fixture(scope="module")
def known():
    return convex("quadratic")


def trace(known, fraction: float, rounds: int):
    method, problem = bounded(known)
    states = []
    run(problem, method, rounds, fraction, watch=states)
    return method, problem, states


@pytest.mark.parametrize(("fraction", "rounds"), [(1.0, 25), (0.5, 60)])
def test_lyapunov_function_does_not_increase(known, fraction, rounds):
    method, problem, states = trace(known, fraction, rounds)
    # the lemma speaks of ξ-approximate solutions, which every client has once it has taken part
    ready = next(
        k for k, s in enumerate(states) if all(s.store.get(c).state.xi < method.xi for c in range(len(problem)))
    )
    values = [lyapunov(problem, method, s) for s in states[ready:]]
    steps = np.diff(values)
    assert len(values) > 15
    assert steps.max() <= 1e-9
    assert values[0] - values[-1] > 1e-3


def test_sufficient_descent_has_the_stated_rate(known):
    method, problem, states = trace(known, 1.0, 20)
    a = min(method.rho / 60, method.sigma / 2 - 4 * method.rho / 15)
    for before, after in pairwise(states[1:]):
        moved = sum(
            (after.store.get(k).state.v - before.store.get(k).state.v).sq()
            + (after.store.get(k).state.u - before.store.get(k).state.u).sq()
            + (after.server.u - before.server.u).sq()
            for k in range(len(problem))
        )
        drop = lyapunov(problem, method, before) - lyapunov(problem, method, after)
        assert drop >= a * moved - 1e-9


def test_lagrangian_ends_at_the_value_of_the_objective(known):
    """Theorem 1c: the Lagrangian and f at the shared model have the same limit."""
    method, problem, states = trace(known, 1.0, 150)
    end = states[-1]
    value = sum(problem.task(k, 0).value(end.server.u, end.store.get(k).state.v) for k in range(len(problem)))
    assert lagrangian(problem, method, end) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize(("rho", "relax"), [(0.03, 1.0), (1.0, 1.0), (1.0, 1.7)])
def test_server_keeps_the_mean_over_all_clients(known, rho, relax):
    """ū = mean of u_i + π_i/ρ over all clients, though only some ever send, and only changes."""
    method = FedAPM(rho=rho, relax=relax, server="all")
    problem = known.problem(method, SGDConfig(lr=0.05, batch_size=7, weight_decay=known.ridge))
    states = []
    run(problem, method, 30, 0.25, watch=states)
    assert max(consensus_error(problem, method, s) for s in states) < 1e-10
    assert (states[-1].server.u - states[0].server.u).norm() > 0.1
