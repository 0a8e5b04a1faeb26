"""The closing phase: every method on every engine, and what it must leave alone."""

import math
from functools import cache

import pytest
import torch

from fedapm.algorithms import METHODS, PRESETS, FedAlt, FedAPM
from fedapm.core.algorithm import State
from fedapm.core.solver import Epochs, Prox, SGDConfig
from fedapm.core.split import SplitRule
from fedapm.data import Dirichlet, Federation
from fedapm.data.sets.digits import federation
from fedapm.models import DigitsNet
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine, evaluate_client
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from tests.contract.test_engines import Normed, gap, quick
from tests.helpers.running import play

KINDS = METHODS | PRESETS
PERSONAL = [name for name, kind in KINDS.items() if kind.personal_field is not None]
CLIENTS, ROUNDS = 5, 2
SHARED = {"fedavg", "fedprox", "fedadmm", "scaffold"}


@cache
def everyone() -> Federation:
    made = federation(Dirichlet(CLIENTS, 1.0, 30), test_fraction=0.2, seed=0)
    return Federation.from_clients(
        {c.id: (c.train.inputs[0][::6].double(), c.train.targets[::6]) for c in made.clients},
        test={c.id: (c.test.inputs[0][::4].double(), c.test.targets[::4]) for c in made.clients},
    )


@pytest.fixture(scope="module")
def clients() -> Federation:
    return everyone()


@cache
def sequential(name, epochs=2):
    """The run that others are compared with."""
    return run(everyone(), quick(name), epochs=epochs)


def run(clients, method, engine=SequentialEngine, epochs=2, model=lambda: DigitsNet(width=12, features=8).double()):
    solver = SGDConfig(lr=0.05, epochs=1, batch_size=20, weight_decay=0.001, lr_schedule="cosine")
    rule = SplitRule(preset="output") if model is not Normed else SplitRule(personal=("3",))
    problem = Problem(clients, model, rule, adapt=method.adapt, solver=solver, seed=2, rounds=ROUNDS)
    runs = engine(problem, method)
    schedule = Schedule(ROUNDS, Sampling(0.4), closing_epochs=epochs)
    try:
        return *play(problem, method, schedule, engine=runs), runs
    finally:
        runs.close()


def test_the_methods_that_have_a_personal_part():
    assert set(KINDS) - set(PERSONAL) == SHARED


@pytest.mark.parametrize("name", PERSONAL)
def test_only_the_models_change(name):
    """Rounds, states and the server are those of a run without the phase; the last record keeps the scores before."""
    plain, expected, without = sequential(name, 0)
    closed, found, engine = sequential(name)
    assert gap(closed.server, plain.server) == 0
    assert all(gap(closed.store.get(k).state, plain.store.get(k).state) == 0 for k in range(CLIENTS))
    assert found[:-1] == expected[:-1]
    last = dict(found[-1])
    closing = last.pop("closing")
    assert closing["before"] == expected[-1]["evaluations"]
    assert closing["epochs"] == 2
    assert closing["bytes_down"] == CLIENTS * engine.algorithm.broadcast(closed.server).nbytes
    assert {**last, "evaluations": None} == {**expected[-1], "evaluations": None}
    field = KINDS[name].personal_field
    moved = [
        not engine.client_state(k).state[field].equal(without.client_state(k).state[field]) for k in range(CLIENTS)
    ]
    assert all(moved), "also those that never took part"
    loss = {when: scores["train_loss"]["mean"] for when, scores in _first(closing["before"], last["evaluations"])}
    assert loss["after"] < loss["before"]


def _first(before, after):
    return ("before", next(iter(before.values()))), ("after", next(iter(after.values())))


@pytest.mark.parametrize("name", sorted(SHARED))
def test_without_a_personal_part_there_is_nothing_to_do(name):
    _, expected, _ = sequential(name, 0)
    _, found, engine = sequential(name)
    assert found == expected
    assert engine.personalized is None


@pytest.mark.parametrize("name", PERSONAL)
def test_processes_agree_to_the_bit(clients, name):
    _, expected, alone = sequential(name)
    _, found, many = run(clients, quick(name), lambda p, m: ProcessEngine(p, m, 2))
    assert found == expected
    assert all(gap(many.client_state(k).state, alone.client_state(k).state) == 0 for k in range(CLIENTS))


@pytest.mark.parametrize("name", PERSONAL)
def test_side_by_side_agrees(clients, name):
    _, _, alone = sequential(name)
    _, _, many = run(clients, quick(name), VectorizedEngine)
    assert max(gap(many.client_state(k).state, alone.client_state(k).state) for k in range(CLIENTS)) < 1e-9
    assert many.fallback_reasons == []


@pytest.mark.parametrize("engine", [SequentialEngine, VectorizedEngine])
@pytest.mark.parametrize(
    "method",
    [
        FedAPM(sigma=0.3, lr_v=0.02, evaluate="local"),
        FedAPM(sigma=0.3, rho=0.7, lr_v=0.02, evaluate="local"),
        FedAPM(sigma=0.3, lr_v=0.02, evaluate="shared"),
        FedAlt(lr_v=0.02),
    ],
)
def test_it_is_what_a_plain_loop_over_clients_gives(clients, method, engine):
    end, records, runs = run(clients, method, engine)
    problem, u = runs.problem, end.server.u
    prox = method.sigma if isinstance(method, FedAPM) else 0.0
    for k in range(CLIENTS):
        before = end.store.get(k)
        task = problem.personal_task(k, ROUNDS)
        v = task.minimize(before.state.v, u, prox=Prox(prox, before.state.v), stop=Epochs(2), lr=0.02)
        found = runs.client_state(k)
        assert max(float((v[n] - found.state.v[n]).abs().max()) for n in v) < 1e-12
        model = method.client_model(State(u=u), found.state)[0]
        if isinstance(method, FedAPM) and method.evaluate == "local":
            # the copy is the client's own: near ū, without the dual that made it agree with others
            rho = method.penalty(State(u=u), task)
            copy = task.minimize(u, v, prox=Prox(rho, u), stop=Epochs(2))
            assert not model.equal(u)
            assert max(float((copy[n] - model[n]).abs().max()) for n in u) < 1e-12
        else:
            assert model.equal(u)
        scores = evaluate_client(problem, method, k, found, State(u=u), "model")
        assert records[-1]["evaluations"]["model"]["per_client"]["accuracy"][k] == scores["accuracy"]


def test_the_step_size_is_that_of_the_last_round(clients):
    """A larger one would undo what a falling step size has settled; the cosine schedule's next one would be 0."""
    _, _, runs = run(clients, FedAlt())
    assert runs.problem.task(0, ROUNDS + 1).step_size() == 0
    last = runs.problem.task(0, ROUNDS).step_size()
    assert 0 < last < 0.05
    assert runs.problem.personal_task(0, ROUNDS).step_size() == last


@pytest.mark.parametrize("engine", [SequentialEngine, VectorizedEngine])
def test_a_client_that_does_not_stay_finite_keeps_what_it_had(clients, engine):
    method = FedAlt()
    end, _, runs = run(clients, method, engine)
    k = 3
    part = runs.store.get(k)
    broken = part.state.v.map(lambda t: torch.full_like(t, math.inf))
    runs.store.commit({k: type(part)(part.state.replace(v=broken), part.buffers)})
    runs.personalize(ROUNDS, State(u=end.server.u), 1)
    assert runs.client_state(k).state.v.equal(broken)
    assert all(runs.client_state(other).state.is_finite() for other in range(CLIENTS) if other != k)


def test_buffers_stay_with_the_client(clients):
    end, _, runs = run(clients, FedAlt(), model=Normed)
    name = "1.running_mean"
    assert not runs.client_state(0).buffers[name].equal(end.store.get(0).buffers[name])
