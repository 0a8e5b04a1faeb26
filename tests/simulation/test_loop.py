"""The loop: sampling, evaluation, divergence, drift and the client-level record."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapm import Diverged, FedAlt, FedAPM, FedapmError, FedAvg, Local
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.data import Dirichlet
from fedapm.data.sets.digits import federation
from fedapm.models import DigitsNet
from fedapm.simulation.callbacks import History
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem, Weighting
from fedapm.simulation.sampling import Sampling
from tests.helpers.problems import convex, run
from tests.helpers.running import play


@pytest.fixture(scope="module")
def clients():
    return federation(Dirichlet(5, 1.0, 30), test_fraction=0.2, seed=0)


def digits(clients, method, **solver):
    solver = SGDConfig(**({"lr": 0.1, "epochs": 1, "batch_size": 20} | solver))
    return Problem(clients, DigitsNet, SplitRule(preset="output"), adapt=method.adapt, solver=solver)


@given(m=st.integers(1, 200), fraction=st.floats(0.001, 1.0), seed=st.integers(0, 9), round=st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_sampling_is_without_replacement_and_of_the_right_size(m, fraction, seed, round):
    drawn = Sampling(fraction).draw(m, seed, round)
    assert len(drawn) == max(1, builtin_round(fraction * m))
    assert sorted(set(drawn)) == drawn
    assert all(0 <= k < m for k in drawn)
    assert drawn == Sampling(fraction).draw(m, seed, round)


builtin_round = round


def test_sampling_is_uniform():
    counts = torch.zeros(10)
    for t in range(1, 2001):
        counts[Sampling(count=3).draw(10, 0, t)] += 1
    # each client is expected 600 times with a standard deviation of about 20
    assert counts.min() > 500
    assert counts.max() < 700


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.2), Sampling(count=6), Sampling(count=0)])
def test_impossible_samplings_are_refused_before_anything_runs(clients, sampling):
    method = FedAlt()
    memory = History()
    with pytest.raises(FedapmError, match=r"fraction of clients|cannot be selected"):
        play(digits(clients, method), method, Schedule(1, sampling), [memory])
    assert memory.records == []


def test_evaluation_follows_its_schedule_and_includes_first_and_last(clients):
    method = FedAlt()
    _, records = run(digits(clients, method), method, 7, evaluate_every=3)
    assert [r["round"] for r in records if r["evaluations"]] == [0, 3, 6, 7]


def test_how_often_models_are_evaluated_does_not_change_them(clients):
    method = FedAPM()
    often, _ = run(digits(clients, method), method, 4, evaluate_every=1)
    rarely, _ = run(digits(clients, method), method, 4, evaluate_every=4)
    assert often.server.u.equal(rarely.server.u)


def test_a_run_that_diverges_stops_with_advice(clients):
    method = FedAlt()
    problem = digits(clients, method, lr=1e12)
    memory = History()
    with pytest.raises(Diverged, match=r"solver\.lr, now 1e\+12"):
        play(problem, method, Schedule(30, Sampling(1.0)), [memory])
    assert next(r["round"] for r in memory.records) == 0


def test_drift_is_the_mean_over_clients_of_summed_tensor_norms(clients):
    """Recomputed from the states by hand for FedAPM, which keeps its copies."""
    method = FedAPM()
    progress, records = run(digits(clients, method), method, 2)
    u = progress.server.u
    gaps = []
    for k in range(len(clients)):
        copy = progress.store.get(k).state.u
        gaps.append(sum((copy[n] - u[n]).double().norm().item() for n in u))
    assert records[-1]["drift"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-9)


def test_drift_of_whole_model_methods_is_measured_on_the_split_of_the_experiment(clients):
    """So that it compares with partial methods: FedAvg's head does not count."""
    problem = digits(clients, FedAvg())
    assert set(problem.drift_names) == {"stem.weight", "stem.bias", "body.weight", "body.bias"}
    assert set(problem.u0) > set(problem.drift_names)
    _, records = run(problem, FedAvg(), 1)
    assert records[-1]["drift"] > 0


def test_drift_of_local_training_is_measured_from_the_mean(clients):
    _, records = run(digits(clients, Local()), Local(), 3)
    assert records[-1]["drift"] > records[1]["drift"] > 0


def test_alphas_average_one_in_client_units_and_sum_to_one_in_the_papers():
    sizes = [10, 20, 70]
    for weights in ("uniform", "samples"):
        assert sum(Weighting(weights, "client").alphas(sizes)) == pytest.approx(3)
        assert sum(Weighting(weights, "paper").alphas(sizes)) == pytest.approx(1)
    assert Weighting("samples", "paper").alphas(sizes) == pytest.approx([0.1, 0.2, 0.7])


def test_stationarity_is_the_distance_from_the_conditions_of_the_definition():
    known = convex("quadratic")
    method = FedAPM(rho=0.3)
    problem = known.problem(method, SGDConfig(lr=0.1, batch_size=0, weight_decay=known.ridge))
    progress, records = run(problem, method, 3, stationarity=True)
    squares = {"u": 0.0, "v": 0.0, "consensus": 0.0}
    duals = torch.zeros(known.d, dtype=torch.float64)
    for k, client in enumerate(known.federation.clients):
        s = progress.store.get(k).state
        (x, w), y = client.train.inputs, client.train.targets
        gap = s.u["u"] - progress.server.u["u"]
        error = (x @ s.u["u"] + w @ s.v["v"] - y) / len(y)
        g_u, g_v = x.T @ error + known.ridge * s.u["u"], w.T @ error + known.ridge * s.v["v"]
        squares["u"] += ((g_u + s.pi["u"] + 0.3 * gap) ** 2).sum().item()
        squares["v"] += (g_v**2).sum().item()
        squares["consensus"] += (gap**2).sum().item()
        duals += s.pi["u"]
    found = records[-1]["stationarity"]
    for name, square in squares.items():
        assert found[name] == pytest.approx(math.sqrt(square), rel=1e-9)
    assert found["dual"] == pytest.approx(duals.norm().item(), abs=1e-12)
    assert found["total"] == pytest.approx(math.sqrt(sum(squares.values()) + found["dual"] ** 2), rel=1e-9)


def test_methods_without_a_stationary_point_record_none(clients):
    _, records = run(digits(clients, FedAvg()), FedAvg(), 1, stationarity=True)
    assert records[-1]["stationarity"] is None
