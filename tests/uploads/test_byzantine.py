"""A fifth of the clients are hostile: what the honest ones' models are worth with each way to take the mean."""

import statistics
from functools import lru_cache

import pytest
from benchmarks.byzantine import ATTACKS, Byzantine, hostile_clients
from benchmarks.privacy import network, sectors

from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.errors import Diverged
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from tests.helpers.running import play
from tests.uploads.small import sending

CLIENTS, ROUNDS = 20, 20
HOSTILE = hostile_clients(CLIENTS, 0)
ROBUST = {
    "trimmed-mean": {"aggregate": "trimmed-mean", "trim": 0.25},
    "geometric-median": {"aggregate": "geometric-median"},
    # what is clipped still counts, so the limit that Flower has by default leaves out what is far too long
    "centered-clipping": {"aggregate": "centered-clipping", "clip": 0.3, "norm_limit": 50.0},
}


@lru_cache
def clients():
    return sectors(0, CLIENTS, 150)


def accuracy(upload: dict, attack: str | None) -> float:
    """The mean accuracy of the honest clients, in percent."""
    method = sending("fedapm", upload)
    method = Byzantine(method, HOSTILE, attack) if attack is not None else method
    solver = SGDConfig(lr=0.2, epochs=5, batch_size=20)
    problem = Problem(clients(), network, SplitRule(preset="output"), adapt=method.adapt, solver=solver, rounds=ROUNDS)
    engine = VectorizedEngine(problem, method)
    _, records = play(problem, method, Schedule(ROUNDS, Sampling(1.0), ROUNDS), engine=engine)
    scores = records[-1]["evaluations"]["model"]["per_client"]["accuracy"]
    return 100 * statistics.fmean(scores[k] for k in range(CLIENTS) if k not in HOSTILE)


@lru_cache
def clean() -> float:
    return accuracy({}, None)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("rule", ROBUST)
def test_a_robust_mean_loses_two_points_at_most(rule, attack):
    assert len(HOSTILE) == CLIENTS // 5
    assert clean() > 80
    assert accuracy(ROBUST[rule], attack) > clean() - 2


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_plain_mean_collapses(attack):
    try:
        left = accuracy({}, attack)
    except Diverged:
        left = 0.0
    assert left < clean() - 20
