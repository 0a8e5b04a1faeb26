"""What travels and what a client keeps: it survives, and what is none of it is refused."""

import stat

import numpy as np
import pytest
import torch
from filelock import FileLock
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedapm.core.algorithm import State, Upload
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec
from fedapm.flower.client import versions
from fedapm.flower.client.versions import Version, Versions
from fedapm.flower.transport import codec
from fedapm.flower.transport.version import version_id
from fedapm.simulation.stores.base import ClientState
from tests.helpers.unit import refused

RUN, TOKEN = "a" * 32, "b" * 12


def test_a_message_survives_its_way():
    tensors = {"a/b": torch.randn(3, 2), "c": torch.arange(4), "half": torch.randn(5).bfloat16(), "none": torch.ones(0)}
    note, found = codec.decode(codec.records({"x": [1, None, 0.1 + 0.2]}, codec.block(tensors)))
    assert note == {"x": [1, None, 0.1 + 0.2]}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[n], t) and found[n].dtype == t.dtype for n, t in tensors.items())
    assert codec.block({}) is None


def of(**more) -> RecordDict:
    return RecordDict({codec.FIELDS: ConfigRecord({"json": "{}"}), **more})


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({codec.FIELDS: ConfigRecord({"json": "["})}),
        RecordDict({codec.FIELDS: ConfigRecord({"json": "[1]"})}),
        RecordDict({codec.FIELDS: ConfigRecord({"json": 3})}),
        of(other=ConfigRecord()),
        of(vectors=ConfigRecord()),
        of(vectors=ArrayRecord({"a": Array(np.ones(2))})),
        of(vectors=ArrayRecord({codec.FORMAT: Array(np.ones(2))})),
        of(vectors=ArrayRecord({codec.FORMAT: Array("uint8", (3,), codec.FORMAT, b"abc")})),
        of(vectors=ArrayRecord({codec.FORMAT: Array("uint8", (16,), codec.FORMAT, b"\xff" * 16)})),
    ],
)
def test_what_is_no_message_is_refused(content):
    with refused("message"):
        codec.decode(content)


def version(round: int, token: str = TOKEN) -> Version:
    x = Vec({"w": torch.tensor([float(round)])})
    state = State(u=x, xi=0.5)
    return Version(
        version_id(round, token), ClientState(state, Vec()), x, Upload({"dz": x}, 2.0), [SolveStats(1, 2, 0.5)]
    )


def test_versions_survive_and_old_ones_go(tmp_path):
    store = Versions(tmp_path, RUN, "../we/ird")
    assert tmp_path in store.folder.resolve().parents
    assert ".." not in store.folder.name.removeprefix("client-..")
    with store.locked():
        for round in range(1, 6):
            store.save(version(round))
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    found = store.load(version_id(3, TOKEN))
    assert found.client_state.state.u.equal(Vec({"w": torch.tensor([3.0])}))
    assert (found.client_state.state.xi, found.upload.weight, found.log) == (0.5, 2.0, [SolveStats(1, 2, 0.5)])
    store.prune("", version_id(5, TOKEN))
    assert len(store.ids()) == 5
    store.prune(version_id(4, TOKEN), version_id(2, TOKEN))
    assert [int(i[:6]) for i in store.ids()] == [2, 4, 5]


@pytest.mark.parametrize("name", ["../../etc/passwd", "000001-XYZ", "1-" + TOKEN, "000001-" + TOKEN + "/..", "lock"])
def test_names_from_the_network_are_names_and_no_paths(tmp_path, name):
    store = Versions(tmp_path, RUN, "a")
    with refused("not a version id"):
        store.load(name)
    with refused("not a version id"):
        versions.round_of(name)
    with refused("not a run id"):
        Versions(tmp_path, name, "a")


def test_two_processes_do_not_work_on_one_client(tmp_path, monkeypatch):
    store = Versions(tmp_path, RUN, "a")
    monkeypatch.setattr(versions, "PATIENCE", 0.05)
    store.folder.mkdir(parents=True)
    with FileLock(store.folder / "lock"), refused("two nodes must not share"), store.locked():
        raise AssertionError("it is not alone")
