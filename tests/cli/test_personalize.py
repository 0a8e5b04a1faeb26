"""fedapm personalize, from a run to models of clients that took no part in it."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file

import fedapm as package
from fedapm.data import Dirichlet
from fedapm.data.sets.digits import federation
from tests.helpers.cli import assert_refused, fedapm


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    settings = ["data.clients=6", "data.unseen=0.34", "engine.final_personal_epochs=1", "engine.engine=sequential"]
    done = fedapm("run", "--rounds", 3, "--out", out, *(f"--set={text}" for text in settings))
    assert done.code == 0, done.err
    assert "closing phase" in done.err
    assert "did not take part: 2" in done.err
    return out


def test_the_clients_that_were_held_out(run, tmp_path):
    done = fedapm("personalize", run, "--unseen", "--out", tmp_path / "models")
    assert done.code == 0, done.err
    rows = json.loads((run / "unseen.json").read_text())["clients"]
    for row in rows:
        assert f"{row['after']['accuracy']:.3f}" in done.out
        state = load_file(tmp_path / "models" / f"client-{row['id']}.safetensors")
        assert state.keys() == package.load(run).state_dict(0).keys()
    again = fedapm("personalize", run, "--unseen", "--out", tmp_path / "models")
    assert_refused(again, "exists already")
    one = fedapm("personalize", run, "--unseen", "--client", rows[1]["id"], "--json")
    assert json.loads(one.out) == [rows[1]]


def test_a_client_of_a_data_set(run):
    taken = package.load(run).clients[0]
    done = fedapm("personalize", run, "--data", "digits", "--client", taken, "--samples", 20, "--correct", "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)
    assert (row["id"], row["train"], row["judged_on"]) == (taken, 16, "test")


def test_a_file(run, tmp_path):
    data = federation(Dirichlet(6, 1.0, 30), test_fraction=0.2, seed=5)[0]
    np.savez(tmp_path / "x.npz", x=data.train.inputs[0].numpy()[:40], y=data.train.targets.numpy()[:40])
    done = fedapm("personalize", run, "--file", tmp_path / "x.npz")
    assert done.code == 0, done.err
    assert "validation samples" in done.out
    assert "chose the number of epochs" in done.out
    np.savez(tmp_path / "few.npz", x=data.train.inputs[0].numpy()[:3], y=data.train.targets.numpy()[:3])
    assert "3 samples are too few" in fedapm("personalize", run, "--file", tmp_path / "few.npz").out
    pickled = tmp_path / "bad.npz"
    np.savez(pickled, x=np.array([{}], dtype=object), y=np.zeros(1))
    assert_refused(fedapm("personalize", run, "--file", pickled), "not an .npz file of plain arrays")


def test_what_is_wrong_is_one_line(run, tmp_path):
    assert_refused(fedapm("personalize", run), "--unseen", "--file")
    assert_refused(fedapm("personalize", run, "--data", "digits"), "--client")
    assert_refused(fedapm("personalize", run, "--data", "digits", "--client", "60"), "no client '60'")
    assert_refused(fedapm("personalize", tmp_path, "--unseen"), "not a run folder")
    assert_refused(fedapm("personalize", run, "--file", tmp_path / "none.npz"), "does not exist")
    np.savez(tmp_path / "many.npz", x=np.zeros((20, 64), np.float32), y=np.arange(20))
    assert_refused(fedapm("personalize", run, "--file", tmp_path / "many.npz"), "class 19", "20 outputs")


def test_the_report_has_both(run):
    text = (run / "report.html").read_text("utf-8")
    assert "Clients that did not take part" in text
    assert "Closing phase" in text


def test_no_one_was_held_out(tmp_path):
    assert fedapm("run", "--rounds", 1, "--out", tmp_path / "run", "--set=data.clients=3").code == 0
    assert_refused(fedapm("personalize", tmp_path / "run", "--unseen"), "held no clients out", "data.unseen")
    assert not (tmp_path / "run" / "unseen.json").exists()
