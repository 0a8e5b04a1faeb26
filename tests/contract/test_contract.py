"""What every method promises, whatever it computes. A new method is tested here by being registered."""

import itertools
import math
from dataclasses import replace
from functools import cache
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedapm.algorithms import METHODS, PRESETS, hyperparameters
from fedapm.core.algorithm import Aggregate, State
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.core.vec import Vec
from fedapm.data import Dirichlet, Federation
from fedapm.data.sets.digits import federation
from fedapm.models import DigitsNet
from fedapm.simulation import checkpoint
from fedapm.simulation.engines.sequential import SequentialEngine, train_client
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.state import RunState
from tests.contract.test_engines import quick
from tests.helpers import running
from tests.helpers.problems import Watcher

KINDS = METHODS | PRESETS

pytestmark = pytest.mark.parametrize("name", list(KINDS))

CLIENTS = 5
BASE = ("base.weight", "base.bias")


class Busy(nn.Module):
    """Everything that makes trouble: batch norm, dropout, a frozen layer, an unused parameter."""

    stages: ClassVar = {"head": ("head",), "output": ("head",), "input": ("norm",)}

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 24)
        self.norm = nn.BatchNorm1d(24)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(24, 10)
        self.idle = nn.Parameter(torch.ones(3))
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.base(x)).relu()))


@pytest.fixture(scope="module")
def clients() -> Federation:
    made = federation(Dirichlet(CLIENTS, 1.0, 30), test_fraction=0.2, seed=0)
    return Federation.from_clients(
        {c.id: (c.train.inputs[0][::6], c.train.targets[::6]) for c in made.clients},
        test={c.id: (c.test.inputs[0][::2], c.test.targets[::2]) for c in made.clients},
    )


def make(clients, name, model=DigitsNet, rule=None, seed=0, **solver):
    method = quick(name)
    settings = SGDConfig(**({"lr": 0.1, "epochs": 1, "batch_size": 20} | solver))
    rule = rule or SplitRule(preset="output")
    problem = Problem(clients, model, rule, adapt=method.adapt, solver=settings, seed=seed, rounds=3)
    return problem, method


def play(problem, method, rounds=3, fraction=0.4, callbacks=(), resume=None, evaluate_every=1):
    schedule = Schedule(rounds, Sampling(fraction), evaluate_every)
    return running.play(problem, method, schedule, callbacks, resume=resume)


@pytest.fixture(scope="module")
def once(clients):
    """Three rounds of a method, run once for all who only look at them."""

    @cache
    def three_rounds(name):
        problem, method = make(clients, name)
        return problem, method, *play(problem, method)

    return three_rounds


@pytest.fixture(scope="module")
def busy(clients):
    """Two rounds of everybody with the network that makes trouble, run once."""

    @cache
    def two_rounds(name):
        problem, method = make(clients, name, model=Busy, rule=SplitRule(personal=("head",)))
        frozen = problem.network(0).read(BASE)
        return problem, method, frozen, *play(problem, method, rounds=2, fraction=1.0)

    return two_rounds


def before(problem, method):
    """A run before its first round."""
    return running.picture(RunState(0, method.server_init(problem.u0)), SequentialEngine(problem, method))


def trained(problem, method, client, start):
    """One client's first round."""
    broadcast = method.broadcast(start.server)
    return train_client(problem, method, client, start.store.get(client), broadcast, 1)


def snapshot(state: State) -> State:
    return State(**{k: v.clone() if isinstance(v, Vec) else v for k, v in state.items()})


def equal(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(v.equal(b[k]) if isinstance(v, Vec) else v == b[k] for k, v in a.items())


def test_equal_runs_are_equal_to_the_bit(clients, once, name):
    _, _, a, first = once(name)
    b, second = play(*make(clients, name))
    assert first == second
    assert equal(a.server, b.server)
    assert all(equal(a.store.get(k).state, b.store.get(k).state) for k in range(CLIENTS))


def test_another_seed_gives_another_run(clients, once, name):
    _, _, _, first = once(name)
    _, second = play(*make(clients, name, seed=1), rounds=1)
    assert first[1] != second[1]


def test_the_order_of_clients_does_not_matter(clients, name):
    problem, method = make(clients, name, model=Busy, rule=SplitRule(personal=("head",)))
    start = before(problem, method)
    forward = {k: trained(problem, method, k, start) for k in range(CLIENTS)}
    backward = {k: trained(problem, method, k, start) for k in reversed(range(CLIENTS))}
    for k in range(CLIENTS):
        assert equal(forward[k].update.state, backward[k].update.state)
        assert forward[k].update.u.equal(backward[k].update.u)
        assert forward[k].buffers.equal(backward[k].buffers)


def test_inputs_are_not_changed(once, name):
    problem, method, progress, _ = once(name)
    broadcast = method.broadcast(progress.server)
    for k in range(CLIENTS):
        kept = progress.store.get(k)
        before, state = snapshot(broadcast), snapshot(kept.state)
        reply = method.client_update(broadcast, kept.state, problem.task(k, 4))
        assert equal(broadcast, before)
        assert equal(kept.state, state)
        held = snapshot(progress.server)
        method.server_update(progress.server, Aggregate.of([reply.upload]), CLIENTS)
        assert equal(progress.server, held)


def test_what_trains_moves_and_what_does_not_stays(busy, name):
    problem, method, frozen, progress, records = busy(name)
    network = problem.network(0)
    assert set(BASE) <= set(network.split.frozen)
    broadcast = method.broadcast(progress.server)
    for k, view in itertools.product(range(CLIENTS), method.views):
        u, v = method.client_model(broadcast, progress.store.get(k).state, view)
        start = problem.u0 | problem.start(k).v0
        for block, now in (("shared", u.without(network.split.frozen)), ("personal", v)):
            assert set(now) == set(getattr(network.split, block))
            for parameter, tensor in now.items():
                moved = not torch.equal(tensor, start[parameter])
                # lp-proj ties all coordinates together, so that even one the loss does not use is moved
                assert moved == (parameter != "idle" or name == "lp-proj"), parameter
    assert network.read(BASE).equal(frozen)
    assert records[-1]["dropped"] == []


def test_clients_that_were_not_selected_keep_their_state(clients, name):
    problem, method = make(clients, name)
    progress, records = play(problem, method, rounds=1, fraction=0.2)
    (selected,) = records[1]["selected"]
    for k in set(range(CLIENTS)) - {selected}:
        fresh = method.client_init(problem.u0, problem.start(k).v0)
        assert equal(progress.store.get(k).state, fresh)


def test_nothing_personal_frozen_or_buffered_is_sent(clients, name):
    problem, method = make(clients, name, model=Busy, rule=SplitRule(personal=("head",)))
    start = before(problem, method)
    broadcast = method.broadcast(start.server)
    done = trained(problem, method, 0, start)
    split = problem.network(0).split
    private = {*split.personal, *split.frozen, *done.buffers}
    assert done.buffers, "the network has running statistics"
    assert not torch.equal(done.buffers["norm.running_mean"], start.store.get(0).buffers["norm.running_mean"])
    for message in (*done.update.upload.sums.values(), *broadcast.vectors.values()):
        assert not private & set(message)
    sent = sum(v.nbytes for v in done.update.upload.sums.values())
    assert (sent == 0) == (not split.shared)


def test_buffers_stay_with_their_client(busy, name):
    _, _, _, progress, _ = busy(name)
    means = [progress.store.get(k).buffers["norm.running_mean"] for k in range(CLIENTS)]
    assert all(not torch.equal(means[0], other) for other in means[1:])


def test_state_survives_a_file(clients, busy, name, tmp_path):
    _, _, _, progress, _ = busy(name)
    path = checkpoint.save(tmp_path, progress.state, progress.store)
    again, other = make(clients, name, model=Busy, rule=SplitRule(personal=("head",)))
    fresh = before(again, other)
    state = checkpoint.load(path, fresh.state, fresh.store)
    loaded = running.Picture(state.round, state.server, fresh.store, state)
    assert equal(loaded.server, progress.server)
    assert (state.round, state.bytes_up) == (2, progress.state.bytes_up)
    assert state.bytes_down == progress.state.bytes_down
    for k in range(CLIENTS):
        assert equal(loaded.store.get(k).state, progress.store.get(k).state)
        assert loaded.store.get(k).buffers.equal(progress.store.get(k).buffers)


def test_going_on_from_a_file_changes_nothing(clients, once, name, tmp_path):
    _, _, straight, whole = once(name)
    half, first = play(*make(clients, name), rounds=1)
    path = checkpoint.save(tmp_path, half.state, half.store)
    resumed, second = play(
        *make(clients, name), resume=lambda loop, engine: checkpoint.load(path, loop.state, engine.store)
    )
    assert equal(resumed.server, straight.server)
    assert all(equal(resumed.store.get(k).state, straight.store.get(k).state) for k in range(CLIENTS))
    assert second == whole[2:]
    assert first == whole[:2]


def test_a_client_that_is_not_finite_is_dropped_for_the_round(clients, name):
    """Its state is left as it was, the others' work counts, and the record says so."""
    problem, method = make(clients, name)
    bad = 2
    original = problem.task

    def poisoned(client, round):
        task = original(client, round)
        return replace(task, lr_factor=math.inf) if client == bad and round == 2 else task

    problem.task = poisoned
    engine, watched = SequentialEngine(problem, method), []
    schedule = Schedule(3, Sampling(1.0))
    progress, records = running.play(problem, method, schedule, [Watcher(watched, engine)], engine)
    assert [r["dropped"] for r in records] == [[], [], [bad], []]
    assert progress.server.is_finite()
    assert all(progress.store.get(k).state.is_finite() for k in range(CLIENTS))
    kept = {picture.round: picture.store.get(bad).state for picture in watched}
    assert equal(kept[2], kept[1])
    assert not kept[3] or not equal(kept[3], kept[2])


@pytest.fixture(scope="module")
def agreeing() -> Federation:
    return federation(Dirichlet(CLIENTS, 1.0, 30), test_fraction=0.2, seed=0, shift=False, samples=900)


def test_it_learns(agreeing, name):
    problem, method = make(agreeing, name, lr=0.3, epochs=2)
    rounds = 10 if name == "pfedme" else 5  # its models go only part of the way to what the data say
    _, records = play(problem, method, rounds=rounds, fraction=0.6, evaluate_every=rounds)
    view = method.views[0]
    first, last = (records[k]["evaluations"][view] for k in (0, -1))
    assert last["train_loss"]["mean"] < 0.75 * first["train_loss"]["mean"]
    assert last["accuracy"]["mean"] > first["accuracy"]["mean"] + 0.2


def test_bytes_are_those_of_the_messages(clients, name):
    problem, method = make(clients, name)
    _, records = play(problem, method, rounds=2, fraction=0.4)
    start = before(problem, method)
    broadcast = method.broadcast(start.server)
    reply = method.client_update(broadcast, start.store.get(0).state, problem.task(0, 1))
    for record in records[1:]:
        assert record["bytes_up"] == 2 * reply.upload.nbytes
        assert record["bytes_down"] == 2 * broadcast.nbytes
    assert records[-1]["total_bytes_up"] == 4 * reply.upload.nbytes


def test_hyperparameters_are_described_and_bad_ones_refused(clients, name):
    kind = KINDS[name]
    assert kind.__doc__
    assert kind.label
    assert isinstance(hyperparameters(kind), dict)
    with pytest.raises(TypeError):
        kind(no_such_hyperparameter=1)
