"""Runs that look at some of their clients: scores, the closing phase, models and files are of the same ones."""

import json

import pytest
import torch

from fedapm import load, train
from fedapm.core.algorithm import State
from fedapm.core.vec import Vec
from fedapm.report import write_report
from fedapm.simulation.problem import evaluated_clients
from fedapm.simulation.stores.base import ClientState
from fedapm.simulation.stores.table import FEWEST, TableStore
from tests.helpers.unit import blob_clients, refused, two_layers

LOOK = {"rounds": 2, "epochs": 1, "count": 3, "personal": ["head"], "progress": False, "final_personal_epochs": 1}


def test_the_sample_is_the_same_every_time_and_never_larger_than_all():
    assert evaluated_clients(10**6, 50) == evaluated_clients(10**6, 50)
    assert len(set(evaluated_clients(10**6, 50))) == 50
    assert evaluated_clients(4, None) == evaluated_clients(4, 9) == range(4)


@pytest.mark.parametrize("engine", ["sequential", "processes", "vectorized"])
def test_scores_are_those_of_the_same_clients_in_a_whole_evaluation(engine):
    clients = blob_clients(8)
    whole = train(clients, two_layers, engine=engine, **LOOK)
    some = train(clients, two_layers, engine=engine, evaluate_clients=3, **LOOK)
    assert len(some.evaluated) == 3
    assert len(some.clients) == 8
    assert some.per_client.equals(whole.per_client.loc[some.evaluated])
    outside = next(name for name in some.clients if name not in some.evaluated)
    # who is not evaluated has no closing phase, but a model all the same
    assert some.state_dict(outside)["body.weight"].equal(whole.state_dict(outside)["body.weight"])
    for name in some.evaluated:
        assert all(t.equal(whole.state_dict(name)[n]) for n, t in some.state_dict(name).items())


def test_files_and_report_are_about_the_evaluated_clients(tmp_path):
    made = train(blob_clients(8), two_layers, out=tmp_path / "run", evaluate_clients=3, **LOOK)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["population"] == 8
    assert [c["id"] for c in info["clients"]] == made.evaluated
    assert len(list((tmp_path / "run" / "models").iterdir())) == 3
    found = load(tmp_path / "run", two_layers)
    assert found.per_client.equals(made.per_client)
    name = made.evaluated[-1]
    assert all(t.equal(made.state_dict(name)[n]) for n, t in found.state_dict(name).items())
    with refused("3 of 8 clients"):
        found.state_dict(next(name for name in made.clients if name not in made.evaluated))
    page = write_report(tmp_path / "run", tmp_path / "page.html").read_text()
    assert "3 of 8 clients" in page
    again = train(blob_clients(8), two_layers, out=tmp_path / "run", resume=True, evaluate_clients=3, **LOOK)
    assert again.per_client.equals(made.per_client)
    with refused("other settings", "evaluate_clients"):
        train(blob_clients(8), two_layers, out=tmp_path / "run", resume=True, evaluate_clients=4, **LOOK)


def test_measures_of_all_clients_are_refused():
    with refused("engine.theory", "3 of 8"):
        train(blob_clients(8), two_layers, theory=True, evaluate_clients=3, **LOOK)


def test_a_table_holds_only_those_who_took_part():
    def state(value):
        return ClientState(State(v=Vec({"w": torch.full((3,), float(value))})), Vec())

    store = TableStore(lambda client: state(-1), 10**9 // 64)
    last = 10**9 // 64 - 1
    for k in range(3):
        many = [last - k * FEWEST - j for j in range(FEWEST)]
        undo = store.scatter(many, store.gather(many))
        store.commit({many[0]: state(k)})
    assert store.get(last).state.vectors["v"]["w"].tolist() == [0.0] * 3
    assert store.get(5).state.vectors["v"]["w"].tolist() == [-1.0] * 3
    assert len([*store.touched()]) == 3 * FEWEST
    undo()
    assert len([*store.touched()]) == 2 * FEWEST


@pytest.mark.parametrize("engine", ["sequential", "processes", "vectorized"])
def test_training_loss_is_of_the_same_samples_in_every_round_and_test_scores_are_of_all(engine):
    clients = blob_clients(3)
    whole = train(clients, two_layers, engine=engine, evaluate_train="all", **LOOK)
    some = train(clients, two_layers, engine=engine, evaluate_train=5, **LOOK)
    names = [name for name in whole.per_client if "train" not in name]
    assert some.per_client[names].equals(whole.per_client[names])
    problem = some.spec.problem
    rows = [problem.evaluated_samples(client) for client in range(3)]
    assert all(len(set(row.tolist())) == 5 for row in rows)
    assert len({tuple(row.tolist()) for row in rows}) > 1
    for client, row in enumerate(rows):
        part = clients[client].train[row]
        network = some.model(client)
        expected = torch.nn.functional.cross_entropy(network(*part.inputs), part.targets).item()
        assert some.per_client["train_loss"].iloc[client] == pytest.approx(expected, rel=1e-5)
        assert some.per_client["train_loss"].iloc[client] != whole.per_client["train_loss"].iloc[client]


def test_a_report_says_that_training_loss_is_of_some_samples(tmp_path):
    train(blob_clients(3), two_layers, out=tmp_path / "run", evaluate_train=5, **LOOK)
    page = write_report(tmp_path / "run", tmp_path / "page.html").read_text()
    assert "at most 5 training samples of a client" in page
