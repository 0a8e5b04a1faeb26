"""Who a node says it is, what data it has, and who is refused."""

import random
from pathlib import Path

import numpy as np
import pytest

from fedapm.errors import FedapmError
from fedapm.experiments.settings import DataSettings
from fedapm.flower import client_app
from fedapm.flower.client.data import load_client_data
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
        Node.from_config(config)


def test_a_node_is_the_client_it_says_it_is():
    assert Node.from_config({"client-id": 7}).client_id(["7", "8"]) == "7"
    assert Node.from_config({"partition-id": 1}).client_id(["a", "b"]) == "b"
    assert Node.from_config({"partition-id": 0, "client-id": "b"}).client_id(["a", "b"]) == "b"
    with refused("'c'", "not in the experiment"):
        Node.from_config({"client-id": "c"}).client_id(["a", "b"])
    with refused("partition-id 2", "2 clients"):
        Node.from_config({"partition-id": 2}).client_id(["a", "b"])
    assert (
        Node.from_config({"client-id": "a", "data-root": "/mine"}).data_settings(DataSettings(root="/theirs")).root
        == "/mine"
    )


def test_the_default_state_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("FEDAPM_STATE", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_state() == Path("/home/me/.local/state/fedapm")
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert default_state() == Path("/home/me/.local/state/fedapm")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert default_state() == Path("/var/state/fedapm")
    monkeypatch.setenv("FEDAPM_STATE", "~/mine")
    assert Node.from_config({"client-id": "a"}).state == default_state() == Path("/home/me/mine")


def test_a_message_for_somebody_else_is_refused(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    case.serve()
    carried = next(c for c in case.grid.carried if c.trains)
    note, tensors = codec.decode(carried.message.content)
    other = next(name for name in CLIENTS if name != carried.client)
    for config in ({"client-id": other}, {"partition-id": CLIENTS.index(other)}):
        reply, vectors = MessageHandler(Node.from_config(config | {"state-dir": str(tmp_path / "x")})).answer(
            note, tensors
        )
        assert vectors == {}
        assert "reached the node of client" in reply["refused"]
    old, _ = MessageHandler(Node.from_config({"client-id": "a"})).answer(note | {"protocol": 0}, tensors)
    assert "protocol 0" in old["refused"]


def test_other_starting_values_are_refused_by_name(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    case.serve()
    carried = next(c for c in case.grid.carried if c.trains)
    note, tensors = codec.decode(carried.message.content)
    node = Node.from_config({"client-id": carried.client, "state-dir": str(tmp_path / "x")})
    client = MessageHandler(node, lambda name: case.data[case.data.position(name)], case.make)
    reply, _ = client.answer(note | {"u0": note["u0"] | {"digest": "0" * 64}}, tensors)
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


def test_a_malformed_data_file_is_refused(tmp_path):
    settings = DataSettings(name="own")
    with refused("does not exist", "x and y"):
        load_client_data(settings, "a", 0, None, tmp_path / "no.npz")
    (tmp_path / "text.npz").write_text("hello")
    with refused("text.npz", "not an .npz"):
        load_client_data(settings, "a", 0, None, tmp_path / "text.npz")
    np.savez(tmp_path / "half.npz", x=np.ones((4, 2)))
    with refused("lacks the array 'y'"):
        load_client_data(settings, "a", 0, None, tmp_path / "half.npz")
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}], dtype=object), y=np.ones(2))
    with refused("objects.npz"):
        load_client_data(settings, "a", 0, None, tmp_path / "objects.npz")
    np.savez(tmp_path / "one.npz", x=np.ones((1, 2)), y=np.array([0]))
    with refused("one.npz", "1 sample"):
        load_client_data(settings, "a", 0, None, tmp_path / "one.npz")
    with refused("data-file"):
        load_client_data(settings, "a", 0, None, None)
    with refused("pair (x, y)"):
        load_client_data(settings, "a", 0, lambda _: [1, 2], None)
    np.savez(tmp_path / "parted.npz", x=np.ones((4, 2)), y=np.arange(4), x_test=np.ones((3, 2)), y_test=np.arange(3))
    data, _ = load_client_data(settings, "a", 0, None, tmp_path / "parted.npz")
    assert (len(data.train), len(data.test)) == (4, 3)


@pytest.mark.parametrize(
    ("arrays", "mentions"),
    [
        ({"x": np.ones((4, 2)), "y": np.arange(3)}, ["equal lengths"]),
        ({"x": np.ones((4, 2)), "y": np.array(1)}, ["'y'", "shape ()"]),
        ({"x": np.array(1.0), "y": np.arange(3)}, ["'x'", "one row per sample"]),
        ({"x": np.ones((4, 2)), "y": np.ones((4, 3), dtype=int)}, ["'y'", "(4, 3)", "whole number"]),
        ({"x": np.ones((4, 2)), "y": np.array(["a", "b", "a", "b"])}, ["text", "class_names"]),
        ({"x": np.ones((4, 2)), "y": np.array([0, 1, -1, 0])}, ["class -1"]),
        ({"x": np.full((4, 2), np.nan), "y": np.arange(4)}, ["NaN"]),
        ({"x": np.ones((0, 2)), "y": np.ones(0, dtype=int)}, ["no training data"]),
        ({"x": np.ones((4, 2)), "y": np.arange(4), "x_test": np.ones((3, 2))}, ["lacks the array 'y_test'"]),
        (
            {"x": np.ones((4, 2)), "y": np.arange(4), "x_test": np.ones((3, 5)), "y_test": np.arange(3)},
            ["different shapes", "(5,)"],
        ),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path, arrays, mentions):
    np.savez(tmp_path / "bad.npz", **arrays)
    with refused("bad.npz", *mentions):
        load_client_data(DataSettings(name="own"), "a", 0, None, tmp_path / "bad.npz")


def test_a_damaged_data_file_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((40, 20)), y=np.arange(40))
    whole = path.read_bytes()
    np.save(tmp_path / "array.npy", np.ones(3))
    damaged = [b"", whole[:50], whole[: len(whole) // 2], whole[:200] + b"\0" * 400 + whole[600:], b"PK\x03\x04"]
    for content in [*damaged, (tmp_path / "array.npy").read_bytes()]:
        path.write_bytes(content)
        with refused("data.npz", "not an .npz file"):
            load_client_data(DataSettings(name="own"), "a", 0, None, path)
    with refused("not an .npz file"):
        load_client_data(DataSettings(name="own"), "a", 0, None, tmp_path)


USUAL = {
    "train": 3,
    "test": 1,
    "different": 2,
    "classes": 2,
    "inputs": [[[2], "float32"]],
    "target": [[[], "int64"]],
}


@pytest.mark.parametrize(
    ("fields", "mention"),
    [
        ({"train": 0}, "training samples"),
        ({"train": "x"}, "training samples"),
        ({"train": 2.5}, "training samples"),
        ({"train": True}, "training samples"),
        ({"train": 10**9}, "from 1 to 1000"),
        ({"test": -1}, "test samples"),
        ({"classes": 10**7}, "classes"),
        ({"different": 3}, "different classes"),
        ({"inputs": [[[2], "os"]]}, "'os'"),
        ({"inputs": [[[1 << 20, 1 << 20], "float32"]]}, "numbers each"),
        ({"inputs": [[[2]]]}, "a shape and a type"),
        ({"target": []}, "one target"),
        ({"more": 1}, "unknown field 'more'"),
    ],
)
def test_a_malformed_data_summary_is_refused(fields, mention):
    assert DataSummary.from_json(USUAL).shapes == ((2,),)
    assert DataSummary.from_json(DataSummary.from_json(USUAL).to_json()) == DataSummary.from_json(USUAL)
    with refused(mention):
        DataSummary.from_json({**USUAL, **fields}, 1000)
    with refused("lacks the field"):
        DataSummary.from_json({})


def test_work_that_fails_is_a_sentence_for_the_server(tmp_path, caplog):
    def broken(name):
        raise RuntimeError("mat1 and mat2\nmust have the same dtype")

    case = Case.of(tmp_path, engine={"rounds": 1})
    case.serve()
    carried = next(c for c in case.grid.carried if c.trains)
    node = Node.from_config({"client-id": carried.client, "state-dir": str(tmp_path / "x")})
    reply, _ = MessageHandler(node, broken, case.make).answer(*codec.decode(carried.message.content))
    assert reply["refused"].startswith("its work failed (RuntimeError: mat1 and mat2 must have the same dtype)")
    assert "Traceback" in caplog.text


def test_every_damaged_data_file_is_one_sentence(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.random.default_rng(0).random((40, 20)), y=np.arange(40) % 4)
    whole, refusals = path.read_bytes(), 0
    for k in range(300):
        stream = random.Random(k)
        data = bytearray(whole)
        for _ in range(stream.choice((1, 3, 20))):
            at = stream.randrange(len(data))
            match stream.randrange(3):
                case 0:
                    data[at] = stream.randrange(256)
                case 1:
                    del data[at : at + stream.randrange(1, 200)]
                case _:
                    data[at:at] = stream.randbytes(stream.randrange(1, 50))
        path.write_bytes(data)
        try:
            load_client_data(DataSettings(name="own"), "a", 0, None, path)
        except FedapmError as error:
            refusals += len(str(error).splitlines()) == 1
    assert refusals > 290
