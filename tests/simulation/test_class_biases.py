"""Personal output biases that start at how often a client's classes occur, with answers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedapm import Dirichlet, Federation, personalize, train
from fedapm.algorithms import FedAPM
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.simulation.class_biases import from_frequencies, output_biases
from fedapm.simulation.engines.base import client_init
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.memory import MemoryStore
from fedapm.simulation.stores.table import TableStore
from tests.helpers.unit import refused

FREQUENCIES = SGDConfig(lr=0.1, epochs=1, batch_size=4, bias_v="frequencies")


def net(outputs: int = 3, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs, bias=bias))


CLASSES = {"a": [0, 0, 1, 1], "b": [2, 2, 2, 2], "c": [0, 1, 1, 2, 2, 2]}
"""Two classes in equal parts, one class alone, and all of them unevenly."""


def arrays() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {name: (rng.normal(size=(len(y), 4)).astype(np.float32), np.array(y)) for name, y in CLASSES.items()}


def federation() -> Federation:
    return Federation.from_clients(arrays(), test=arrays())


def linear() -> nn.Module:
    return nn.Linear(4, 2)


def problem(personal=("2",), model=net, data=None, **settings) -> Problem:
    return Problem(data or federation(), model, SplitRule(personal=personal), solver=FREQUENCIES, **settings)


def test_the_biases_are_the_logarithms_of_smoothed_frequencies() -> None:
    made = problem()
    for client, counts in enumerate([(2, 2, 0), (0, 0, 4), (1, 2, 3)]):
        logs = np.log(np.array(counts) + 0.5)
        bias = made.start(client).v0["2.bias"]
        assert bias.dtype == torch.float32
        assert bias.tolist() == pytest.approx(list(logs - logs.mean()), abs=1e-6)
        # softmax of the bias alone gives the frequencies, each class with half a sample more
        assert bias.softmax(0).tolist() == pytest.approx([(n + 0.5) / (sum(counts) + 1.5) for n in counts], abs=1e-6)


def test_nothing_else_of_the_start_changes() -> None:
    made = problem()
    plain = Problem(federation(), net, SplitRule(personal=("2",)))
    for client in range(3):
        assert torch.equal(made.start(client).v0["2.weight"], plain.start(client).v0["2.weight"])
        assert made.task(client, 1).v0.equal(made.start(client).v0)
    assert made.u0.equal(plain.u0)


@pytest.mark.parametrize("personal", [(), ("0",), ("2.weight",)])
def test_without_the_output_bias_among_personal_parameters_all_start_alike(personal) -> None:
    made = problem(personal)
    plain = Problem(federation(), net, SplitRule(personal=personal))
    for client in range(3):
        assert made.start(client).v0.equal(plain.start(client).v0)


def test_a_hidden_layer_of_as_many_numbers_keeps_its_bias() -> None:
    def square() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))

    made = problem(("*bias*",), square)
    plain = Problem(federation(), square, SplitRule(personal=("*bias*",)))
    assert torch.equal(made.start(0).v0["0.bias"], plain.start(0).v0["0.bias"])
    assert not torch.equal(made.start(0).v0["2.bias"], plain.start(0).v0["2.bias"])


def test_added_heads_count_and_what_is_frozen_does_not() -> None:
    two = nn.ModuleDict({"head": nn.Linear(5, 3), "personal_head": nn.Linear(5, 3)})
    before = {"head.weight": 15, "head.bias": 3}
    assert output_biases(two, ("personal_head.weight", "personal_head.bias"), before) == ("personal_head.bias",)
    assert output_biases(two, ("head.weight",), before) == ()
    assert output_biases(two, ("head.bias",), {"head.weight": 15}) == ()


def test_a_start_without_biases_stays_the_same_object_of_numbers() -> None:
    v0 = problem().start(0).v0
    assert from_frequencies(v0, (), torch.tensor([0, 1])).equal(v0)


@pytest.mark.parametrize("touched", [(), (0,), (2, 1)])
def test_the_table_of_states_gives_everyone_their_own_start(touched) -> None:
    made = problem()
    init = client_init(made, FedAPM())
    table, plain = TableStore(init, 3, alike=False), MemoryStore(init)
    for client in touched:
        state = init(client)
        state = type(state)(state.state.replace(v=2.0 * state.state.v), state.buffers)
        table.commit({client: state})
        plain.commit({client: state})
    for chosen in ([0, 1, 2], [2, 0], [1]):
        together = table.gather(chosen)
        for place, client in enumerate(chosen):
            expected = plain.get(client).state
            assert all(torch.equal(together.v[n][place], expected.v[n]) for n in expected.v)
            assert table.get(client).state.v.equal(expected.v)
    undo = table.scatter([0, 1], table.gather([1, 0]))
    assert torch.equal(table.get(0).state.v["2.bias"], plain.get(1).state.v["2.bias"])
    undo()
    assert table.get(0).state.v.equal(plain.get(0).state.v)


def test_it_helps_where_clients_differ_in_classes_alone() -> None:
    """Two classes that cannot be told apart by the inputs: the right answer is the client's own frequency."""
    rng = np.random.default_rng(1)
    clients = {}
    for k, share in enumerate([0.1, 0.9, 0.2, 0.8]):
        y = (rng.random(200) < share).astype(np.int64)
        clients[str(k)] = (rng.normal(size=(200, 4)).astype(np.float32), y)
    data = Federation.from_clients(clients, test_fraction=0.5, seed=0)

    def loss(start: str) -> float:
        found = train(data, linear, personal=["bias"], rounds=1, epochs=1, lr=0.01, bias_v=start, seed=0)
        return float(found.history["test_loss"].iloc[-1])

    # the entropy of the frequencies is about 0.41
    assert loss("frequencies") < 0.6 < loss("drawn")


def test_clients_that_are_read_when_they_are_needed_start_at_their_own_classes() -> None:
    kept = arrays()
    lazy = Federation.lazy(list(kept), lambda name: kept[name], test_fraction=0.25, classes=3)
    made = problem(data=lazy)
    for client in range(3):
        counts = torch.bincount(lazy[client].train.targets, minlength=3)
        logs = (counts.double() + 0.5).log()
        assert torch.allclose(made.start(client).v0["2.bias"].double(), logs - logs.mean(), atol=1e-6)


def test_a_new_client_starts_at_its_own_classes() -> None:
    """Nothing is trained, so all that its model can know of its classes is where the bias started."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(400, 4)).astype(np.float32), rng.integers(0, 3, 400)
    data = Federation.from_arrays(x, y, Dirichlet(clients=4, concentration=0.5), test_fraction=0.3)
    one = (x[:60], np.full(60, 2, dtype=np.int64))
    lowest = {}
    for start in ("drawn", "frequencies"):
        run = train(data, net, personal=["2.bias"], rounds=1, fraction=1.0, epochs=1, lr=1e-6, bias_v=start, seed=0)
        lowest[start] = personalize(run, one, epochs=0).predict(x[60:]).softmax(1)[:, 2].min()
    assert lowest["drawn"] < 0.9 < lowest["frequencies"]


def test_what_cannot_be_is_refused_before_anything_is_trained() -> None:
    with refused("bias_v", "each of the 3 classes", "'2.bias', has 5"):
        problem(model=lambda: net(5))
    with refused("bias_v", "it has no bias"):
        problem((), lambda: nn.Linear(4, 3, bias=False))
    rng = np.random.default_rng(0)
    quantities = Federation.from_clients({"a": (rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=8))})
    with refused("bias_v", "quantities"):
        problem((), lambda: nn.Linear(4, 1), quantities)
    with refused("bias_v", 'privacy.level = "sample"'):
        train(federation(), net, personal=["2"], bias_v="frequencies", rounds=1, fraction=1.0,
              privacy={"level": "sample", "clip": 1.0, "noise_multiplier": 1.0})  # fmt: skip
