"""Who a node says it is, what data it has, and who is refused."""

from pathlib import Path

import numpy as np
import pytest

from fedapm.experiments.settings import DataSettings
from fedapm.flower import client_app
from fedapm.flower.client.data import own_data
from fedapm.flower.client.handler import MessageHandler
from fedapm.flower.client.node import Node, default_state
from fedapm.flower.problem import DataSummary
from fedapm.flower.transport import codec
from tests.flower.cases import CLIENTS, Case, network
from tests.helpers.unit import refused


@pytest.mark.parametrize(
    ("config", "mentions"),
    [
        ({}, ["client-id"]),
        ({"partition-id": -1}, ["partition-id"]),
        ({"partition-id": True}, ["partition-id"]),
        ({"partition-id": "0"}, ["partition-id"]),
        ({"client-id": "a", "state-dir": 3}, ["state-dir", "quotes"]),
        ({"client-id": "a", "data-file": ""}, ["data-file", "quotes"]),
    ],
)
def test_a_node_that_does_not_know_itself_is_refused(config, mentions):
    with refused(*mentions):
        Node.read(config)


def test_a_node_is_the_client_it_says_it_is(monkeypatch):
    assert Node.read({"client-id": 7}).name(["7", "8"]) == "7"
    assert Node.read({"partition-id": 1}).name(["a", "b"]) == "b"
    assert Node.read({"partition-id": 0, "client-id": "b"}).name(["a", "b"]) == "b"
    with refused("'c'", "not in the experiment"):
        Node.read({"client-id": "c"}).name(["a", "b"])
    with refused("partition-id 2", "2 clients"):
        Node.read({"partition-id": 2}).name(["a", "b"])
    monkeypatch.setenv("FEDAPM_STATE", "/somewhere")
    assert Node.read({"client-id": "a"}).state == default_state() == Path("/somewhere")
    assert Node.read({"client-id": "a", "data-root": "/mine"}).data(DataSettings(root="/theirs")).root == "/mine"


def test_a_message_for_somebody_else_is_refused(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    case.serve()
    carried = next(c for c in case.grid.carried if c.trains)
    note, tensors = codec.decode(carried.message.content)
    other = next(name for name in CLIENTS if name != carried.client)
    for config in ({"client-id": other}, {"partition-id": CLIENTS.index(other)}):
        reply, vectors = MessageHandler(Node.read(config | {"state-dir": str(tmp_path / "x")})).answer(note, tensors)
        assert vectors == {}
        assert "reached the node of client" in reply["refused"]
    old, _ = MessageHandler(Node.read({"client-id": "a"})).answer(note | {"protocol": 0}, tensors)
    assert "protocol 0" in old["refused"]


def test_other_starting_values_are_refused_by_name(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    case.serve()
    carried = next(c for c in case.grid.carried if c.trains)
    note, tensors = codec.decode(carried.message.content)
    node = Node.read({"client-id": carried.client, "state-dir": str(tmp_path / "x")})
    client = MessageHandler(node, lambda name: case.data[case.data.position(name)], case.make)
    reply, _ = client.answer(note | {"u0": note["u0"] | {"digest": "0"}}, tensors)
    assert carried.client in reply["refused"]
    assert "other values" in reply["refused"]
    assert not list((tmp_path / "x").rglob("*.safetensors"))


@pytest.mark.parametrize("nodes", [{1: "north", 2: "north"}, {1: "north", 2: "north", 3: "south"}])
def test_two_nodes_that_are_one_client_are_refused_by_name(tmp_path, nodes):
    case = Case.of(tmp_path)
    case.grid.clients = {number: {"client-id": client} for number, client in nodes.items()}
    with refused("1 and 2", "'north'", "client-id"):
        case.serve()


def test_a_second_claim_in_the_middle_of_a_run_is_passed_over(tmp_path):
    case = Case.of(tmp_path)

    def fate(carried):
        if carried.asked.get("round") == 1:
            case.grid.clients[999] = {"client-id": "north"}

    case.grid.fate = fate
    records = case.serve()
    assert case.complete
    assert all(not r["dropped"] for r in records)
    assert any("999" in what and "'north'" in what for _, _, what in case.events())
    assert not any(c.node == 999 and c.trains for c in case.grid.carried)


def test_clients_that_never_come_are_named(tmp_path):
    case = Case.of(tmp_path, flower={"wait": 3.0})
    case.grid.away = {101, 103}
    with refused("south, west", "flower.wait"):
        case.serve()
    assert not case.out.exists()


def test_clients_with_other_inputs_are_named(tmp_path):
    case = Case.of(tmp_path)

    def data(name):
        found = case.data[case.data.position(name)]
        return (np.ones((20, 3)), np.arange(20) % 2) if name == "west" else found

    case.grid.app = client_app(data=data, model=case.make)
    with refused("west", "north", "same form"):
        case.serve()


def test_networks_of_a_clients_own_data_cannot_be_made_on_the_server(tmp_path):
    case = Case.of(tmp_path, make=lambda client: network())
    with refused("no argument"):
        case.serve()


def test_a_data_file_that_is_none_is_refused(tmp_path):
    settings = DataSettings(name="own")
    with refused("does not exist", "x and y"):
        own_data(settings, "a", 0, None, tmp_path / "no.npz")
    (tmp_path / "text.npz").write_text("hello")
    with refused("text.npz", "not an .npz"):
        own_data(settings, "a", 0, None, tmp_path / "text.npz")
    np.savez(tmp_path / "half.npz", x=np.ones((4, 2)))
    with refused("lacks the array 'y'"):
        own_data(settings, "a", 0, None, tmp_path / "half.npz")
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}], dtype=object), y=np.ones(2))
    with refused("objects.npz"):
        own_data(settings, "a", 0, None, tmp_path / "objects.npz")
    np.savez(tmp_path / "one.npz", x=np.ones((1, 2)), y=np.array([0]))
    with refused("1 sample"):
        own_data(settings, "a", 0, None, tmp_path / "one.npz")
    with refused("data-file"):
        own_data(settings, "a", 0, None, None)
    with refused("pair (x, y)"):
        own_data(settings, "a", 0, lambda _: [1, 2], None)
    np.savez(tmp_path / "parted.npz", x=np.ones((4, 2)), y=np.arange(4), x_test=np.ones((3, 2)), y_test=np.arange(3))
    data, _ = own_data(settings, "a", 0, None, tmp_path / "parted.npz")
    assert (len(data.train), len(data.test)) == (4, 3)


@pytest.mark.parametrize("note", [{}, {"train": 0}, {"train": "x"}, {"train": 3, "inputs": [[[2], "os"]]}])
def test_a_note_on_data_that_is_none_is_refused(note):
    usual = {
        "train": 3,
        "test": 1,
        "different": 2,
        "classes": 2,
        "inputs": [[[2], "float32"]],
        "target": [[[], "int64"]],
    }
    assert DataSummary.read(usual).shapes == ((2,),)
    with refused("not one"):
        DataSummary.read({**usual, **note} if note else {})
