"""A broadcast that is sent in changes: clients are shown what the server has, with an error that goes away."""

from itertools import pairwise

import pytest

from fedapm.core.algorithm import Aggregate
from fedapm.core.vec import mean
from fedapm.simulation.sampling import Sampling
from fedapm.uploads.broadcast import SHOWN, STEP
from tests.helpers.unit import refused
from tests.uploads.small import CLIENTS, problem_of, run, sending


@pytest.mark.parametrize(("how", "share"), [("bf16", 2**-8), ("int8", 0.05)])
def test_the_error_of_what_is_shown_goes_away(how, share):
    method = sending("fedavg", {"broadcast": how})
    server = method.server_init(problem_of(method).u0)
    moved = server.replace(u=server.u + server.u.map(lambda t: t.sin()))
    still, errors = Aggregate({"du": server.u.zeros()}, 1.0, 1), [(moved.u - method.broadcast(server).u).norm()]
    for _ in range(4):
        before = method.broadcast(moved)
        moved = method.server_update(moved, still, CLIENTS)
        assert method.added(before.vectors, moved[STEP])["u"].equal(method.broadcast(moved).u)
        errors.append((moved.u - method.broadcast(moved).u).norm())
    assert all(after <= share * before for before, after in pairwise(errors))


@pytest.mark.parametrize("name", ["fedapm", "fedapm-paper", "scaffold", "fedalt"])
def test_the_server_keeps_the_exact_mean_and_clients_see_what_is_shown(name):
    method = sending(name, {"broadcast": "int8", "round_to": "int8"}, **({"max_epochs": 2} if "paper" in name else {}))
    end, _ = run(method, 10)
    shown = method.broadcast(end.server).u
    assert shown.equal(end.server[SHOWN + "u"])
    assert 0 < (shown - end.server.u).norm() < 0.05 * end.server.u.norm()
    states = [end.store.get(k).state for k in range(CLIENTS)]
    if name == "fedapm":
        assert (end.server.pi - mean(s.pi for s in states)).norm() < 1e-12
    if name == "fedapm-paper":
        assert (end.server.u - mean(s.z for s in states)).norm() < 1e-12
    if name == "scaffold":
        assert (end.server.c - mean(s.c for s in states)).norm() < 1e-12


def test_who_has_the_last_broadcast_receives_its_change_alone():
    plain, coded = (run(sending("fedavg", upload), 6, 0.5)[1] for upload in ({}, {"broadcast": "int8"}))
    whole = plain[1]["bytes_down"] // 3
    change = whole // 8 + 6 * 4  # six tensors in double precision, each with a scale
    for record in coded[1:]:
        before = Sampling(0.5).draw(CLIENTS, 0, record["round"] - 1) if record["round"] > 1 else []
        heard = len(set(before) & set(record["selected"]))
        assert record["bytes_down"] == heard * change + (3 - heard) * whole
    assert 0 < sum(r["bytes_down"] for r in coded) < sum(r["bytes_down"] for r in plain)


def test_a_server_that_diverged_shows_it():
    method = sending("fedavg", {"broadcast": "int8"})
    server = method.server_init(problem_of(method).u0)
    broken = Aggregate({"du": server.u.map(lambda t: t / 0)}, 1.0, 1)
    assert not method.broadcast(method.server_update(server, broken, CLIENTS)).is_finite()


def test_who_receives_nothing_can_receive_nothing_else():
    with refused("Local only", "[upload]"):
        sending("local", {"broadcast": "int8"})
