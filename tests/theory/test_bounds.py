"""What the descent lemma demands, from curvature that is known, and the descent that follows as a run records it."""

from __future__ import annotations

import numpy as np
import pytest

from fedapm import FedAPM, FedAvg
from fedapm.core.solver import SGDConfig
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.problem import Problem
from fedapm.theory.bounds import Penalties, demanded
from fedapm.theory.constants import ClientConstants, chosen_clients
from fedapm.theory.course import course
from fedapm.theory.study import Study, study
from tests.helpers.problems import PAPER, Convex, convex, run


def lipschitz(known: Convex, client: int) -> tuple[float, float, float]:
    """L_u, L_v and L_uv of a quadratic f_i: norms of the blocks of its Hessian."""
    x, w = (part.numpy() for part in known.federation[client].train.inputs)
    blocks = (x.T @ x / len(x), w.T @ w / len(x), x.T @ w / len(x))
    l_u, l_v, l_uv = (np.linalg.norm(block, 2) for block in blocks)
    return l_u + known.ridge, l_v + known.ridge, l_uv


def bounded(known: Convex) -> tuple[FedAPM, Problem]:
    """FedAPM with the least ρ and σ that the lemma allows, and a solver that is exact enough."""
    l_u, l_v, l_uv = np.max([lipschitz(known, k) for k in range(len(known.federation))], axis=0)
    rho = 3 * max(l_u, l_uv)
    sigma = max(8 / 15 * rho, l_v)
    method = FedAPM(rho=rho, sigma=sigma, xi=0.5, mu=0.8, max_epochs=3000, server="all", v_at="local", u_start="local")
    return method, known.problem(method, SGDConfig(lr=1 / (l_u + rho), batch_size=0, weight_decay=known.ridge))


def at_start(problem: Problem, method, **options) -> Study:
    engine = SequentialEngine(problem, method)
    return study(problem, method, engine.client_state, method.server_init(problem.u0), 0, **options)


@pytest.fixture(scope="module")
def known() -> Convex:
    return convex("quadratic")


def test_the_constants_of_quadratics_are_found(known):
    method, problem = bounded(known)
    found = at_start(problem, method, clients=10)
    assert len(found.constants) == len(problem)
    for k, constants in enumerate(found.constants):
        assert constants.client == problem.federation[k].id
        assert constants.converged
        assert (constants.u, constants.v, constants.uv) == pytest.approx(lipschitz(known, k), rel=2e-3)


def test_the_least_penalties_are_those_of_the_lemma(known):
    method, problem = bounded(known)
    found = at_start(problem, method, clients=10)
    assert found.demanded.rho == pytest.approx(method.rho, rel=2e-3)
    assert found.demanded.sigma == pytest.approx(method.sigma, rel=2e-3)
    assert found.in_use == Penalties(method.rho, method.sigma)


def test_alpha_weighs_the_constants(known):
    method, _ = bounded(known)
    problem = known.problem(method, SGDConfig(batch_size=0, weight_decay=known.ridge), weighting=PAPER)
    found = at_start(problem, method, clients=10)
    assert found.demanded.rho == pytest.approx(method.rho / len(problem), rel=2e-3)


def test_both_lemmas_bound_sigma():
    steep_v = [ClientConstants("a", 1.0, 5, 5, u=1.0, v=9.0, uv=2.0), ClientConstants("b", 2.0, 5, 5, 0.5, 0.5, 0.5)]
    assert demanded(steep_v) == Penalties(6.0, 9.0)
    assert demanded(steep_v[1:]) == Penalties(3.0, pytest.approx(1.6))
    nothing_personal = [ClientConstants("a", 1.0, 5, 5, u=1.0, v=None, uv=None)]
    assert demanded(nothing_personal) == Penalties(3.0, pytest.approx(1.6))


@pytest.mark.parametrize(
    ("used", "enough"), [((6.0, 9.0), True), ((5.9, 9.0), False), ((6.0, 8.9), False), ((60.0, 9.0), False)]
)
def test_penalties_meet_the_bounds_or_not(used, enough):
    assert Penalties(*used).meet(Penalties(6.0, 9.0)) is enough


def test_the_analysis_demands_nothing_of_other_methods(known):
    problem = known.problem(FedAvg(), SGDConfig(batch_size=0))
    found = at_start(problem, FedAvg())
    assert (found.in_use, found.demanded, found.lyapunov, found.stationarity) == (None, None, None, None)
    assert found.constants[0].u > 0
    assert found.constants[0].v is None
    assert found.disagreement > 0


def test_under_the_bounds_the_recorded_lyapunov_function_never_rises(known):
    method, problem = bounded(known)
    _, records = run(problem, method, 25, theory=True)
    # the lemma speaks of ξ-approximate solutions, which every client has after the first round
    found = course(records[1:])
    assert found.falls == found.steps == 24
    assert found.values[0] - found.values[-1] > 1e-3


def test_clients_and_samples_are_drawn_by_the_seed(known):
    method, problem = bounded(known)
    one, again = (at_start(problem, method, clients=2, samples=10) for _ in range(2))
    assert one == again
    assert [c.samples for c in one.constants] == [10, 10]
    assert [c.available for c in one.constants] == [40, 40]
    assert one.constants != at_start(problem, method, clients=2).constants
    problem.seed = 9
    draws = {tuple(chosen_clients(problem, 2)) for problem.seed in range(8)}
    assert len(draws) > 1
    problem.seed = 0


def test_a_study_survives_a_file(known):
    method, problem = bounded(known)
    found = at_start(problem, method, clients=2)
    assert Study.from_dict(found.as_dict()) == found
