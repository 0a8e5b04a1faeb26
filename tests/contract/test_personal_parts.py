"""What keeps personal parts from overfitting is there for every method that has one, on every engine, and no other."""

from __future__ import annotations

from functools import cache

import pytest

from fedapm.data import Dirichlet, Federation
from fedapm.data.sets.digits import federation
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from tests.contract.test_engines import CLIENTS, KINDS, gap, run

PERSONAL = [name for name, kind in KINDS.items() if kind.scope != "whole"]
AT_ONCE = {"fedsim", "fedper", "lg-fedavg", "fedrod", "fedcp"}
"""Methods without a phase that trains personal parameters alone."""
ALL = {"prior_v": 0.5, "dropout_v": 0.3, "validation_v": 0.3}


@pytest.fixture(scope="module")
def clients() -> Federation:
    made = federation(Dirichlet(CLIENTS, 1.0, 30), test_fraction=0.2, seed=0)
    return Federation.from_clients(
        {c.id: (c.train.inputs[0][::8].double(), c.train.targets[::8]) for c in made.clients},
        test={c.id: (c.test.inputs[0][::2].double(), c.test.targets[::2]) for c in made.clients},
    )


@pytest.fixture(scope="module")
def plain(clients):
    """Two rounds of a method with none of the settings, run once."""
    return cache(lambda name: run(clients, name, SequentialEngine, rounds=2)[0])


def difference(one, other) -> float:
    clients = (gap(one.store.get(k).state, other.store.get(k).state) for k in range(CLIENTS))
    return max(gap(one.server, other.server), *clients)


@pytest.mark.parametrize("name", PERSONAL)
def test_processes_agree_with_one_process_to_the_bit(clients, name):
    alone, expected, _ = run(clients, name, SequentialEngine, rounds=2, **ALL)
    shared, found, _ = run(clients, name, lambda p, m: ProcessEngine(p, m, 2), rounds=2, **ALL)
    assert found == expected
    assert difference(shared, alone) == 0


@pytest.mark.parametrize("name", KINDS)
def test_each_of_them_reaches_every_method_with_a_personal_part_and_no_other(clients, plain, name):
    for key, value in ALL.items():
        other, _, _ = run(clients, name, SequentialEngine, rounds=2, **{key: value})
        # the ξ-rule has its own end
        reached = name in PERSONAL and not (key == "validation_v" and name in {*AT_ONCE, "fedapm-paper"})
        assert (difference(other, plain(name)) > 0) == reached, key


@pytest.mark.parametrize("name", PERSONAL)
def test_zero_is_what_not_set_is(clients, plain, name):
    zero, _, _ = run(clients, name, SequentialEngine, rounds=2, **dict.fromkeys(ALL, 0.0))
    assert difference(zero, plain(name)) == 0


@pytest.mark.parametrize("name", PERSONAL)
@pytest.mark.parametrize("extra", [{}, {"momentum": 0.5, "weights": "samples"}, {"weights": "samples"}])
def test_the_prior_is_the_same_side_by_side(clients, name, extra):
    alone, _, _ = run(clients, name, SequentialEngine, rounds=2, prior_v=0.5, **extra)
    many, _, engine = run(clients, name, VectorizedEngine, rounds=2, prior_v=0.5, **extra)
    assert difference(many, alone) < 1e-9
    assert engine.fallback_reasons == []


@pytest.mark.parametrize("name", PERSONAL)
def test_dropout_and_early_stopping_are_the_same_side_by_side(clients, name):
    """Each client has the masks and the end that it has by itself."""
    alone, _, _ = run(clients, name, SequentialEngine, rounds=2, epochs=4, **ALL)
    many, _, engine = run(clients, name, VectorizedEngine, rounds=2, epochs=4, **ALL)
    assert engine.fallback_reasons == []
    assert difference(many, alone) < 1e-9


def test_a_strong_prior_keeps_personal_parts_together_where_they_started(clients, plain):
    free = plain("fedalt")
    tied, _, _ = run(clients, "fedalt", SequentialEngine, rounds=2, prior_v=15.0)
    start = run(clients, "fedalt", SequentialEngine, rounds=2, lr=1e-12)[0].store.get(0).state.v
    distances = [sum((engine.store.get(k).state.v - start).sq() for k in range(CLIENTS)) for engine in (free, tied)]
    assert 0 < distances[1] < 0.1 * distances[0]


OWN_BIAS = ["fedapm", "fedapm-paper", "fedalt", "fedsim", "fedper", "fedrep", "fedrod", "fedcp", "local"]
"""Methods that train a personal output layer, which starts as the network draws it or at zero."""


@pytest.mark.parametrize("name", OWN_BIAS)
def test_a_personal_output_bias_starts_at_the_classes_of_its_client_on_every_engine(clients, plain, name):
    alone, expected, _ = run(clients, name, SequentialEngine, rounds=2, bias_v="frequencies")
    shared, found, _ = run(clients, name, lambda p, m: ProcessEngine(p, m, 2), rounds=2, bias_v="frequencies")
    assert found == expected
    assert difference(shared, alone) == 0
    assert difference(alone, plain(name)) > 0
    many, _, engine = run(clients, name, VectorizedEngine, rounds=2, bias_v="frequencies", prior_v=0.1)
    one, _, _ = run(clients, name, SequentialEngine, rounds=2, bias_v="frequencies", prior_v=0.1)
    assert difference(many, one) < 1e-9
    assert engine.fallback_reasons == []


@pytest.mark.parametrize("name", [name for name in KINDS if name not in OWN_BIAS])
def test_without_a_personal_output_bias_nothing_changes(clients, plain, name):
    other, _, _ = run(clients, name, SequentialEngine, rounds=2, bias_v="frequencies")
    assert difference(other, plain(name)) == 0
