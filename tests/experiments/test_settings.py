"""Settings: every key checked, unknown ones refused by name, and a written experiment is the same experiment."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapm import METHODS, FedAlt, FedAPM, FedProx, SGDConfig
from fedapm.data import DATA_SETS
from fedapm.experiments.build import resolve
from fedapm.experiments.settings import (
    DataSettings,
    EngineSettings,
    Experiment,
    ModelSettings,
    merged,
    parse_assignment,
    read_toml,
)
from fedapm.runs.config import differences
from tests.helpers.unit import few, refused


@pytest.mark.parametrize(
    ("tables", "mentions"),
    [
        ({"algoritm": {}}, ["[algoritm]", "'algorithm'"]),
        ({"run": {}}, ["[run]", "algorithm", "data", "engine", "model", "solver"]),
        ({"algorithm": {"rh": 1}}, ["'algorithm.rh'", "fedapm", "'rho'"]),
        ({"algorithm": {"name": "fedavg", "rho": 1}}, ["'algorithm.rho'", "fedavg"]),
        ({"algorithm": {"name": "fedamp"}}, ["'fedamp'", "'fedapm'"]),
        ({"solver": {"learning_rate": 1}}, ["'solver.learning_rate'"]),
        ({"engine": {"round": 1}}, ["'engine.round'", "'rounds'"]),
        ({"data": {"client": 3}}, ["'data.client'", "'clients'"]),
        ({"model": {"personel": ["head"]}}, ["'model.personel'", "'personal'"]),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(tables: dict[str, Any], mentions: list[str]) -> None:
    with refused("unknown", *mentions):
        Experiment.from_tables(tables)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("engine", "rounds", 2.5),
        ("engine", "rounds", "many"),
        ("engine", "rounds", [3]),
        ("engine", "weights", "equal"),
        ("solver", "lr", "fast"),
        ("solver", "lr_schedule", "linear"),
        ("data", "partition", "random"),
        ("data", "shards", None),
        ("data", "root", 3),
        ("model", "personal", "head"),
        ("model", "personal", [1]),
        ("model", "preset", "middle"),
        ("model", "options", "width=3"),
        ("algorithm", "rho", "a\nb"),
        ("algorithm", "v_at", "server"),
    ],
)
def test_values_of_the_wrong_kind_are_refused_by_key(table: str, key: str, value: Any) -> None:
    with refused(f"{table}.{key}"):
        Experiment.from_tables({table: {key: value}})


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("solver", "lr", 0),
        ("solver", "lr", -0.1),
        ("solver", "lr", float("nan")),
        ("solver", "epochs", -1),
        ("solver", "batch_size", -1),
        ("solver", "momentum", 1.0),
        ("solver", "momentum", -0.1),
        ("solver", "weight_decay", -1e-3),
        ("solver", "weight_decay_v", -1e-3),
        ("solver", "lr_decay", 0.0),
        ("solver", "lr_decay", 1.1),
        ("engine", "rounds", 0),
        ("engine", "evaluate_every", 0),
        ("engine", "checkpoint_every", -1),
        ("algorithm", "rho", -1.0),
        ("algorithm", "sigma", -1.0),
        ("algorithm", "mu", 1.0),
    ],
)
def test_values_out_of_range_are_refused_by_key(table: str, key: str, value: Any) -> None:
    with refused(f"{table}.{key} = {value}"):
        Experiment.from_tables({table: {key: value}})


@pytest.mark.parametrize(("key", "value"), [("lr_v", -0.1), ("epochs_v", -1), ("xi", -1.0), ("max_epochs", -1)])
def test_hyperparameters_that_make_no_sense_are_refused_by_key(key: str, value: Any) -> None:
    with refused(f"algorithm.{key}"):
        Experiment.from_tables({"algorithm": {key: value}})


def test_a_value_where_a_table_belongs_is_refused() -> None:
    with refused("'solver'", "[solver]"):
        Experiment.from_tables({"solver": 3})
    for table in ("data", "model", "algorithm", "engine"):
        with refused(f"'{table}'", f"[{table}]"):
            resolve({table: 3})


EXPERIMENTS = [
    *(Experiment(algorithm=kind()) for kind in METHODS.values()),
    Experiment(algorithm=FedAPM(rho=0.3, v_at="local", lr_v=0.01, epochs_v=2, xi=0.5, mu=0.5)),
    Experiment(algorithm=FedAlt(lr_v=0.25)),
    Experiment(
        DataSettings("cifar10", root="/some/where", partition="shards", clients=7, shards=3, seed=4),
        ModelSettings("cnn", personal=("fc1", "fc*"), frozen=("conv1",), options={"dropout": 0.5}),
        FedProx(mu=0.0),
        SGDConfig(0.5, 1, 0, 0.9, 1e-4, "cosine"),
        EngineSettings(3, 8, count=2, save_models=False, stationarity=True, weights="samples", units="paper"),
    ),
]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.algorithm.name)
def test_a_written_experiment_is_the_same_experiment(experiment: Experiment, tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(experiment.toml(), encoding="utf-8")
    assert Experiment.from_tables(read_toml(path)) == experiment


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"model": {"personal": ["stem"]}},
        {"model": {"shared": ["body"]}},
        {"model": {"preset": "input", "options": {"width": 8}}},
        {"model": {"name": "cnn"}},
        {"data": {"name": "cifar10"}, "solver": {"lr": 0.3}},
        {"algorithm": {"name": "local"}},
    ],
)
def test_what_a_run_folder_says_repeats_the_run(given: dict[str, Any]) -> None:
    """A data set's defaults must not come back over what is written out."""
    experiment = resolve(given)
    assert resolve(tomllib.loads(experiment.toml())) == experiment


@few
@given(
    st.floats(1e-6, 1e3),
    st.floats(0, 1e3),
    st.integers(1, 10**6),
    st.text("abcü \"'\\.*", max_size=8),
    st.sampled_from(sorted(METHODS)),
)
def test_any_value_survives_the_file(lr: float, decay: float, rounds: int, text: str, name: str) -> None:
    experiment = Experiment(
        DataSettings(root=text),
        ModelSettings(personal=(text, "head")),
        METHODS[name](),
        SGDConfig(lr=lr, weight_decay=decay),
        EngineSettings(rounds),
    )
    assert Experiment.from_tables(tomllib.loads(experiment.toml())) == experiment


def test_a_written_experiment_has_every_setting_that_is_set() -> None:
    tables = Experiment(algorithm=FedAPM()).tables()
    assert tables["algorithm"]["name"] == "fedapm"
    for part, kind in {
        "data": DataSettings,
        "solver": SGDConfig,
        "engine": EngineSettings,
        "algorithm": FedAPM,
    }.items():
        unset = {f.name for f in fields(kind) if f.default is None}
        assert set(tables[part]) - {"name"} == {f.name for f in fields(kind)} - unset - {"name"}


def test_later_layers_win_key_by_key() -> None:
    below = {"solver": {"lr": 1.0, "epochs": 2}, "engine": {"rounds": 5}}
    above = {"solver": {"lr": 2.0}, "data": {"seed": 1}}
    assert merged(below, above) == {
        "solver": {"lr": 2.0, "epochs": 2},
        "engine": {"rounds": 5},
        "data": {"seed": 1},
    }
    assert below == {"solver": {"lr": 1.0, "epochs": 2}, "engine": {"rounds": 5}}, "layers are only read"
    assert merged() == {}


def test_a_change_of_method_leaves_the_old_ones_settings_behind() -> None:
    fedapm = {"algorithm": {"name": "fedapm", "rho": 0.3}}
    assert merged(fedapm, {"algorithm": {"name": "fedprox"}}) == {"algorithm": {"name": "fedprox"}}
    assert merged(fedapm, {"algorithm": {"name": "fedapm"}}) == fedapm
    assert merged(fedapm, {"algorithm": {"sigma": 0.0}})["algorithm"] == {"name": "fedapm", "rho": 0.3, "sigma": 0.0}
    assert merged({"algorithm": {"rho": 0.3}}, {"algorithm": {"name": "fedapm"}})["algorithm"]["rho"] == 0.3
    assert "rho" not in merged({"algorithm": {"rho": 0.3}}, {"algorithm": {"name": "fedavg"}})["algorithm"]


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("algorithm.rho=0.1", {"algorithm": {"rho": 0.1}}),
        ("engine.rounds = 7", {"engine": {"rounds": 7}}),
        ("engine.save_models=false", {"engine": {"save_models": False}}),
        ("data.name=digits", {"data": {"name": "digits"}}),
        ('data.name="digits"', {"data": {"name": "digits"}}),
        ("data.root=/a/b=c", {"data": {"root": "/a/b=c"}}),
        ("data.root=", {"data": {"root": ""}}),
        ('model.personal=["fc1", "fc2"]', {"model": {"personal": ["fc1", "fc2"]}}),
        ("model.options.width=8", {"model": {"options": {"width": 8}}}),
        ("model.options.deep.er=true", {"model": {"options": {"deep": {"er": True}}}}),
    ],
)
def test_assignments(text: str, tables: dict[str, Any]) -> None:
    assert parse_assignment(text) == tables


@pytest.mark.parametrize("text", ["", "algorithm.rho", "rho=1", "=1", ".rho=1", "algorithm.=1", "algorithm=fedavg"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with refused("--set", "table.key=value", repr(text)):
        parse_assignment(text)


def test_two_options_of_a_network_can_be_set_one_by_one() -> None:
    both = merged(parse_assignment("model.options.width=8"), parse_assignment("model.options.features=4"))
    assert both == {"model": {"options": {"width": 8, "features": 4}}}


@pytest.mark.parametrize("name", sorted(DATA_SETS))
def test_a_data_sets_defaults_hold_where_nothing_is_said(name: str) -> None:
    found = resolve({"data": {"name": name}}).tables()
    for table, values in DATA_SETS[name].defaults.items():
        for key, value in values.items():
            # of a table within a table only what the data set says
            there = {k: found[table][key][k] for k in value} if isinstance(value, dict) else found[table][key]
            assert there == value, f"{table}.{key}"


def test_what_is_said_goes_over_a_data_sets_defaults_key_by_key() -> None:
    silent, said = resolve({}), resolve({"data": {"minimum": 3}, "solver": {"batch_size": 5}})
    assert (said.data.minimum, said.solver.batch_size) == (3, 5)
    assert differences(silent.tables(), said.tables()) == ["data.minimum", "solver.batch_size"]


@pytest.mark.parametrize("model", [{"personal": ["stem"]}, {"shared": ["body"]}, {"preset": "input"}])
def test_whoever_says_what_is_personal_does_not_get_the_data_sets_preset(model: dict[str, Any]) -> None:
    assert resolve({"model": model}).model.preset == model.get("preset")


def test_naming_the_data_sets_own_network_changes_nothing() -> None:
    assert resolve({"model": {"name": "digits"}}) == resolve({})


def test_resolving_never_changes_the_data_sets_defaults() -> None:
    before = repr(DATA_SETS["digits"].defaults)
    resolve({"model": {"personal": ["stem"]}})
    resolve({"data": {"clients": 3}})
    assert repr(DATA_SETS["digits"].defaults) == before


def test_a_simulation_passes_over_what_is_about_a_network() -> None:
    file = Path(__file__).parents[2] / "examples" / "digits-flower.toml"
    tables = read_toml(file)
    assert "flower" in tables
    without = {name: table for name, table in tables.items() if name != "flower"}
    assert resolve(tables) == resolve(without)
    assert "flower" not in resolve(tables).tables()
    assert "flower" in tables, "the caller's tables are as they were"


def test_an_unknown_data_set_is_refused() -> None:
    with refused("'digit'", "'digits'"):
        resolve({"data": {"name": "digit"}})


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    for content in (b"[engine\nrounds = 1", b"rounds 1", b"\xff\xfe", b"[a]\n[a]\n"):
        path.write_bytes(content)
        with refused(str(path), "not valid TOML"):
            read_toml(path)
    with refused("none.toml", "does not exist"):
        read_toml(tmp_path / "none.toml")
    with refused(str(tmp_path), "folder"):
        read_toml(tmp_path)


def test_differences_name_every_key_that_differs() -> None:
    old = Experiment().tables()
    assert differences(old, Experiment().tables()) == []
    new = Experiment(solver=SGDConfig(lr=0.3), engine=EngineSettings(count=2, seed=5)).tables()
    assert differences(old, new) == ["engine.count", "engine.seed", "solver.lr"]
    assert differences(new, old) == ["engine.count", "engine.seed", "solver.lr"]
