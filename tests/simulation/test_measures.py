"""What is measured over a whole federation, against sums done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedapm import FedAlt, FedAPM, FedAvg, Federation, Local
from fedapm.algorithms import METHODS
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.simulation import measures
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.problem import Problem, Weighting
from tests.helpers.problems import Linear2, convex, half_squares, run

SMALL = {"data": {"name": "digits", "clients": 4}, "solver": {"epochs": 1}}


def linear(targets: list[float], weighting: Weighting | None = None) -> Problem:
    """Clients with f_i(u) = ½(u − y_i)² each, two of which may have several samples."""
    one = torch.ones(1, 1, dtype=torch.float64)
    data = {
        str(k): ((one, torch.zeros(1, 0, dtype=torch.float64)), torch.tensor([y], dtype=torch.float64))
        for k, y in enumerate(targets)
    }
    return Problem(
        Federation.from_clients(data, test=data),
        lambda: Linear2(1, 0),
        SplitRule(),
        adapt=FedAvg().adapt,
        solver=SGDConfig(),
        loss=half_squares,
        weighting=weighting,
    )


def disagreement(problem: Problem, method=None) -> float | None:
    method = method or FedAvg()
    engine = SequentialEngine(problem, method)
    server = method.server_init(problem.u0)
    return measures.disagreement(problem, method, engine.client_state, 0, method.broadcast(server))


def test_identical_clients_agree():
    assert disagreement(linear([3.0] * 5)) == pytest.approx(0, abs=1e-12)


def test_clients_that_contradict_each_other_cancel():
    u = Linear2(1, 0).u.item()
    assert disagreement(linear([u - 1, u + 1])) == math.inf
    assert disagreement(linear([u - 1, u + 1.001])) > 1e6
    assert disagreement(linear([u, u])) is None, "nobody pulls"


@pytest.mark.parametrize("units", ["client", "paper"])
def test_disagreement_is_the_spread_of_the_pulls_over_their_mean(units):
    u, targets = Linear2(1, 0).u.item(), [1.0, 2.0, 5.0]
    pulls = u - np.array(targets)
    found = disagreement(linear(targets, Weighting(units=units)))
    assert found == pytest.approx(pulls.var() / pulls.mean() ** 2)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_with_a_shared_part_has_a_disagreement(name):
    spec = build.plan(build.resolve(SMALL, {"algorithm": {"name": name}, "engine": {"rounds": 1, "theory": True}}))
    theory = [record["theory"] for record in execute(spec, progress=False).records]
    # the loss of FedRoD's evaluated model has no gradient in what is shared; lp-proj shares a projection
    assert all((row["disagreement"] is None) == (name in ("local", "lp-proj", "fedrod")) for row in theory)
    assert all(("lyapunov" in row) == (name == "fedapm") for row in theory)


def test_the_lagrangian_and_its_residuals_by_hand():
    known = convex("quadratic")
    method = FedAPM(rho=0.3, xi=0.5, mu=0.8)
    problem = known.problem(method, SGDConfig(lr=0.1, batch_size=0, weight_decay=known.ridge))
    states = []
    _, records = run(problem, method, 3, 0.5, theory=True, watch=states)
    before, at = states[-2:]
    value, slack, gaps = 0.0, 0.0, []
    for k, client in enumerate(known.federation.clients):
        s = at.store.get(k).state
        (x, w), y = client.train.inputs, client.train.targets
        u, v, gap = s.u["u"], s.v["v"], s.u["u"] - at.server.u["u"]
        f = 0.5 * ((x @ u + w @ v - y) ** 2).mean() + 0.5 * known.ridge * (u @ u + v @ v)
        value += (f + s.pi["u"] @ gap + 0.15 * gap @ gap).item()
        slack += 29 * s.xi / (0.3 * 0.2)
        gaps.append((gap @ gap).item())
    found = records[-1]["theory"]
    assert found["lagrangian"] == pytest.approx(value)
    assert found["lyapunov"] == pytest.approx(value + slack)
    assert found["primal"] == pytest.approx(math.sqrt(np.mean(gaps)))
    assert found["dual"] == pytest.approx(0.3 * (at.server.u - before.server.u).norm())
    assert found["rho"] == 0.3
    assert records[0]["theory"]["dual"] is None, "before the first round ū has not moved"


def test_without_a_penalty_there_is_no_lagrangian():
    known = convex("quadratic")
    method = FedAPM(rho=0.0)
    problem = known.problem(method, SGDConfig(lr=0.1, batch_size=0))
    _, records = run(problem, method, 1, theory=True)
    assert list(records[-1]["theory"]) == ["disagreement"]


@pytest.mark.parametrize("method", [FedAlt(), Local()])
def test_other_methods_have_none_either(method):
    known = convex("quadratic")
    problem = known.problem(method, SGDConfig(lr=0.1, batch_size=0))
    _, records = run(problem, method, 1, theory=True)
    assert list(records[-1]["theory"]) == ["disagreement"]


def test_recording_changes_nothing_and_no_engine_changes_the_record(tmp_path):
    def played(**engine):
        tables = {"rounds": 2, "engine": "sequential", "theory": True} | engine
        return execute(build.plan(build.resolve(SMALL, {"engine": tables})), progress=False).records

    recorded, plain, batched = played(), played(theory=False), played(engine="vectorized")
    assert [{k: v for k, v in row.items() if k != "theory"} for row in recorded] == plain
    for one, other in zip(recorded, batched, strict=True):
        assert one["theory"] == {k: v and pytest.approx(v, rel=1e-3) for k, v in other["theory"].items()}


def test_a_resumed_run_records_the_same(tmp_path):
    tables = {"engine": "sequential", "theory": True, "checkpoint_every": 1}

    def played(out, rounds, resume=False):
        spec = build.plan(build.resolve(SMALL, {"engine": tables | {"rounds": rounds}}))
        execute(spec, out, resume=resume, progress=False)
        return (out / "rounds.jsonl").read_bytes()

    played(tmp_path / "two", 2)
    assert played(tmp_path / "two", 4, resume=True) == played(tmp_path / "straight", 4)


def test_a_run_may_be_recorded_from_where_it_is_resumed(tmp_path):
    def played(rounds, theory, resume=False):
        spec = build.plan(build.resolve(SMALL, {"engine": {"rounds": rounds, "theory": theory}}))
        return execute(spec, tmp_path / "run", resume=resume, progress=False).records

    played(1, False)
    assert ["theory" in row for row in played(2, True, resume=True)] == [False, False, True]
