"""Data and networks of the user's own in experiment files, in every command."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedapm
from fedapm.experiments import build
from fedapm.experiments.settings import merged, read_toml
from tests.helpers.cli import assert_refused
from tests.helpers.cli import fedapm as command
from tests.helpers.own import PEOPLE, arrays, project
from tests.helpers.unit import refused


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    return project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def run(config, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    done = command("run", config, "--set", 'data.unseen=["dan"]', "--out", out)
    assert done.code == 0, done.err
    return out


def test_paths_are_relative_to_the_experiment_file(config, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    experiment = build.resolve(read_toml(config))
    assert experiment.data.path == config.parent / "people.npz"
    assert experiment.data.name == "people"
    assert experiment.data.partition == "natural"
    assert [c.id for c in build.federation(experiment.data).clients] == list(PEOPLE)


def test_a_run_records_the_digest_class_names_and_where_things_were(run, config):
    settings = tomllib.loads((run / "config.toml").read_text())
    assert len(settings["data"]["digest"]) == 64
    assert settings["data"]["folder"] == str(config.parent)
    info = json.loads((run / "run.json").read_text())
    assert info["class_names"] == ["run", "sit", "walk"]
    assert info["model"] == "Net"


def test_a_run_goes_on_from_its_own_settings_in_another_folder(run, config, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = command("run", run / "config.toml", "--out", run, "--resume", "--rounds", 3)
    assert done.code == 0, done.err
    assert len(fedapm.load(run).records) == 4


def test_a_file_that_changed_is_refused(tmp_path):
    mine = project(tmp_path / "project")
    out = tmp_path / "run"
    assert command("run", mine, "--rounds", 1, "--out", out).code == 0
    before = (out / "run.json").read_bytes()
    project(tmp_path / "project", x=arrays()["x"] + 1)
    assert_refused(command("run", mine, "--rounds", 1, "--out", out, "--resume"), "data.digest")
    assert_refused(command("run", out / "config.toml", "--out", tmp_path / "two"), "people.npz", "changed")
    assert (out / "run.json").read_bytes() == before


def test_a_run_of_ones_own_network_is_loaded_without_being_given_it(run):
    loaded = fedapm.load(run)
    outputs = loaded.predict("ann", arrays()["x"][:3])
    assert outputs.shape == (3, 3)


def test_a_held_out_person_gets_a_model(run, config, tmp_path):
    shown = command("personalize", run, "--unseen", "--json")
    assert shown.code == 0, shown.err
    assert [row["id"] for row in json.loads(shown.out)] == ["dan"]
    other = command("personalize", run, "--data", config.parent / "people.npz", "--client", "bob", "--json")
    assert [row["id"] for row in json.loads(other.out)] == ["bob"]
    given = arrays(6)
    np.savez(tmp_path / "new.npz", x=given["x"], y=given["y"])
    assert command("personalize", run, "--file", tmp_path / "new.npz", "--epochs", 1).code == 0
    np.savez(tmp_path / "odd.npz", x=given["x"], y=np.array(["fly"] * 24))
    assert_refused(command("personalize", run, "--file", tmp_path / "odd.npz"), "'fly'", "classes")


def test_inspect_takes_a_file_an_experiment_and_a_factory(config, tmp_path):
    for what in (config, config.parent / "people.npz"):
        shown = command("data", "inspect", what, "--out", tmp_path / "p.png", "--json")
        assert shown.code == 0, shown.err
        found = json.loads(shown.out)
        assert [client["id"] for client in found["clients"]] == list(PEOPLE)
        assert found["classes"] == ["run", "sit", "walk"]
    tables = merged(read_toml(config), {"data": {"factory": "people_data:load", "folder": str(config.parent)}})
    assert len(build.counted(build.resolve(tables).data)) == 4


def test_compare_tune_sweep_and_split_know_own_data_and_networks(config, tmp_path):
    quick = ["--rounds", 1, "--set", "solver.epochs=1"]
    tuned = command(
        "tune", config, *quick, "--methods", "fedapm", "--trials", 2, "--workers", 1,
        "--search", "model.options.hidden=2,3", "--out", tmp_path / "tune",
    )  # fmt: skip
    assert tuned.code == 0, tuned.err
    compared = command(
        "compare", config, *quick, "--methods", "fedapm,fedavg", "--seeds", 0, "--out", tmp_path / "c", "--json"
    )
    assert compared.code == 0, compared.err
    assert [row["method"] for row in json.loads(compared.out)["rows"]] == ["fedapm", "fedavg"]
    again = command("compare", config, "--tuned", tmp_path / "tune", "--methods", "fedapm", "--seeds", 0, *quick,
                    "--out", tmp_path / "d")  # fmt: skip
    assert again.code == 0, again.err
    swept = command(
        "sweep", config, *quick, "--vary", "model.options.hidden=2,3", "--seeds", 0, "--out", tmp_path / "s"
    )
    assert swept.code == 0, swept.err
    split = command("split", config, *quick, "--seeds", 0, "--budget", 8, "--out", tmp_path / "split", "--json")
    assert split.code == 0, split.err


def test_a_factory_of_data_gets_options_and_the_seed(config):
    base = {"data": {"factory": "people_data:load", "folder": str(config.parent)}}
    data = build.resolve(base, {"data": {"options": {"people": 2}}}).data
    assert [c.id for c in build.federation(data).clients] == ["ann", "bob"]
    assert build.federation(data).name == "people"
    for change, mentions in (
        ({"options": {"peopel": 2}}, ["data.options.peopel", "'people'"]),
        ({"factory": "people_data:nothing"}, ["Federation", "return"]),
        ({"factory": "people_data:broken"}, ["KeyError", "people_data.py, line"]),
        ({"factory": "people_data:number"}, ["int"]),
        ({"factory": "people_daat:load"}, ["people_data"]),
    ):
        with refused(*mentions):
            build.federation(build.resolve(base, {"data": {**base["data"], **change}}).data)


@pytest.mark.parametrize(
    ("change", "mentions"),
    [
        ({"factory": "people_network:text"}, ["nn.Module", "str"]),
        ({"factory": "people_network:Net", "options": {"hiden": 3}}, ["model.options.hiden", "'hidden'"]),
        ({"factory": "people_network:Nett"}, ["'Net'"]),
        ({"factory": "people_network:Net", "name": "mlp"}, ["model.name", "model.factory"]),
        ({"name": "har"}, ["har"]),
    ],
)
def test_networks_that_cannot_be_made_are_refused(config, change, mentions):
    tables = {**read_toml(config), "model": {"personal": ["head"], "folder": str(config.parent), **change}}
    with refused(*mentions):
        build.plan(build.resolve(tables))


def test_a_network_may_be_made_for_each_client(config):
    tables = merged(
        read_toml(config), {"model": {"factory": "people_network:for_client", "folder": str(config.parent)}}
    )
    spec = build.plan(build.resolve(tables))
    assert spec.problem.per_client


def test_without_a_network_or_a_split_it_is_said_what_to_do(config):
    data = read_toml(config)["data"]
    with refused("model.name", "model.factory"):
        build.plan(build.resolve({"data": data, "model": {"personal": ["x"]}}))
    with refused("fedapm split"):
        build.plan(build.resolve({"data": data, "model": {"name": "mlp"}}))
    assert build.plan(build.resolve({"data": data, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}))


def test_another_way_to_name_the_data_replaces_the_first():
    file = {"data": {"file": "a.npz", "folder": "/x", "columns": {"y": "z"}, "seed": 3}}
    assert merged(file, {"data": {"name": "digits"}})["data"] == {"name": "digits", "seed": 3}
    assert merged({"data": {"name": "digits", "seed": 3}}, file)["data"] == file["data"]
    with refused("data.file", "data.factory"):
        build.resolve({"data": {"file": "a.npz", "factory": "a:b"}})
    with refused("data.features"):
        build.resolve({"data": {"file": "a.npz", "features": "statistics"}})


def test_init_writes_a_project_that_runs_as_it_is(tmp_path, monkeypatch):
    shown = command("init", tmp_path / "my project")
    assert shown.code == 0
    config = tmp_path / "my project" / "experiment.toml"
    assert_refused(command("init", tmp_path / "my project"), "exists already")
    monkeypatch.chdir(tmp_path)
    assert command("data", "inspect", config).code == 0
    done = command("run", config, "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows"][0]["accuracy"]["mean"] > 0.8
