"""On problems with one known solution FedAPM finds it, and methods that only average do not."""

from dataclasses import replace

import numpy as np
import pytest

from fedapm import FedAlt, FedAPM, FedSim
from fedapm.core.solver import SGDConfig
from fedapm.core.vec import total
from fedapm.simulation.measures import stationarity
from fedapm.simulation.problem import Problem
from tests.helpers.problems import Convex, convex, run
from tests.helpers.running import Picture

EXACT = FedAPM(rho=1.0, sigma=0.2, xi=1.0, mu=0.7, max_epochs=400, theta=1.0, v_at="local", u_start="local")
FULL = {"lr": 0.25, "batch_size": 0}


def distance(problem: Convex, progress) -> float:
    u = np.linalg.norm(progress.server.u["u"].numpy() - problem.u)
    v = max(np.linalg.norm(progress.store.get(k).state.v["v"].numpy() - v) for k, v in enumerate(problem.v))
    return max(u, v)


def residual(problem: Problem, method: FedAPM, progress: Picture) -> float:
    """The norm of all conditions of a stationary point."""
    found = stationarity(problem, method, progress.store.get, progress.round, method.broadcast(progress.server))
    assert found is not None
    return found["total"]


@pytest.fixture(scope="module", params=["quadratic", "logistic"])
def known(request) -> Convex:
    return convex(request.param)


@pytest.fixture(scope="module")
def solved(known):
    """FedAPM with exact solves and every client in every round."""
    problem = known.problem(EXACT, SGDConfig(weight_decay=known.ridge, **FULL))
    return problem, *run(problem, EXACT, 100, stationarity=True)


def test_fedapm_reaches_the_kkt_point(known, solved):
    problem, progress, records = solved
    assert records[-1]["stationarity"]["total"] <= 1e-6
    assert records[-1]["stationarity"]["total"] == residual(problem, EXACT, progress)
    assert records[0]["stationarity"]["total"] > 0.1
    assert distance(known, progress) <= 1e-6


@pytest.mark.parametrize(
    ("kind", "options", "fraction", "rounds"),
    [
        ("logistic", {"v_at": "shared", "u_start": "shared"}, 1.0, 100),
        ("quadratic", {"v_at": "local", "u_start": "local"}, 0.5, 200),
        ("logistic", {"relax": 1.6}, 0.5, 200),
        ("logistic", {"phases": "joint", "v_at": "shared", "u_start": "shared"}, 0.5, 200),
    ],
)
def test_so_it_does_from_other_starts_and_with_half_of_the_clients(kind, options, fraction, rounds):
    known, method = convex(kind), replace(EXACT, **options)
    problem = known.problem(method, SGDConfig(weight_decay=known.ridge, **FULL))
    progress, _ = run(problem, method, rounds, fraction)
    assert residual(problem, method, progress) <= 1e-6
    assert distance(known, progress) <= 1e-6


def test_duals_sum_to_zero_and_balance_the_gradients(solved):
    problem, progress, _ = solved
    duals = [progress.store.get(k).state.pi for k in range(len(problem))]
    assert total(duals).norm() <= 1e-6
    assert min(dual.norm() for dual in duals) > 1e-2, "the clients disagree, so no dual may vanish"


@pytest.mark.parametrize("method", [FedAlt(), FedSim()])
def test_averaging_several_local_steps_is_biased(known, method):
    """With the same local work FedAlt and FedSim come to rest away from the solution."""
    problem = known.problem(method, SGDConfig(weight_decay=known.ridge, epochs=10, **FULL))
    states = []
    progress, _ = run(problem, method, 60, watch=states)
    assert (progress.server.u - states[-2].server.u).norm() < 1e-5, "it has come to rest"
    assert distance(known, progress) > 1e-2


def test_paper_sign_of_drift(known, solved):
    """FedAPM's copies agree with ū in the end; FedAlt's never do."""
    _, _, records = solved
    alt = known.problem(FedAlt(), SGDConfig(weight_decay=known.ridge, epochs=10, **FULL))
    assert records[-1]["drift"] < 1e-5
    assert run(alt, FedAlt(), 20)[1][-1]["drift"] > 1e-1


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("quadratic", {"theta": 1.0}),
        ("logistic", {"theta": 1.0}),
        ("logistic", {"theta": "auto"}),
        ("quadratic", {"rho": "auto", "kappa": 0.5}),
        ("logistic", {"rho": "balanced", "kappa": 0.5}),
    ],
)
def test_the_participants_mean_reaches_the_same_point(kind, options):
    """With 30% of the clients a round: the solution, H → 0 because the duals sum to zero."""
    known = convex(kind)
    method = replace(EXACT, **{"theta": "auto", **options}, mu=0.5, v_at="shared", u_start="shared")
    problem = known.problem(method, SGDConfig(weight_decay=known.ridge, **FULL))
    progress, records = run(problem, method, 220, 0.3)
    assert len(records[1]["selected"]) < len(problem)
    assert distance(known, progress) <= 1e-6
    assert residual(problem, method, progress) <= 1e-6
    duals = [progress.store.get(k).state.pi for k in range(len(problem))]
    assert (total(duals) / len(problem) - progress.server.pi).norm() < 1e-12, "the server has the mean of all duals"
    assert total(duals).norm() <= 1e-6
