"""Comparisons with each method's own settings, given in a file or found by a search."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedapm.experiments.compare import About, overlay, parse_targets, plans
from fedapm.experiments.settings import Experiment
from fedapm.runs.records import load_run
from tests.helpers.cli import fedapm
from tests.helpers.unit import refused

TUNED = """
[engine]
units = "client"

[fedprox]
mu = 0.25

[fedprox.solver]
lr = 0.05
weight_decay = 0.001

[fedavg.solver]
lr = 0.3

[fedavg.model.options]
width = 32

[local]
"""


def by_method(*layers: Any, methods: tuple[str, ...] = ("fedprox", "fedavg")) -> dict[str, Experiment]:
    return {one.algorithm.name: one for one in plans(methods, [0], *layers)}


def test_a_methods_own_tables_are_for_that_method_alone() -> None:
    own = {"solver": {"lr": 0.3}, "model": {"preset": "input", "options": {"width": 32}}, "mu": 0.25}
    found = by_method({"solver": {"lr": 0.1, "epochs": 2}, "fedprox": own})
    assert (found["fedprox"].solver.lr, found["fedavg"].solver.lr) == (0.3, 0.1)
    assert found["fedprox"].solver.epochs == 2
    assert found["fedprox"].tables()["algorithm"]["mu"] == 0.25
    assert found["fedprox"].model.options == {"width": 32}
    assert found["fedprox"].model.preset == "input"
    assert found["fedavg"].model.options == {}
    assert found["fedavg"].model.preset == "output"


def test_options_of_a_network_add_up_over_layers() -> None:
    layers = (
        {"model": {"options": {"width": 16}}},
        {"fedprox": {"model": {"options": {"features": 8}}}},
        {"fedprox": {"model": {"options": {"width": 24}}}},
    )
    found = by_method(*layers)
    assert found["fedprox"].model.options == {"width": 24, "features": 8}
    assert found["fedavg"].model.options == {"width": 16}


def test_later_layers_win_and_in_one_layer_a_methods_own() -> None:
    both = {"solver": {"lr": 0.1}, "fedprox": {"solver": {"lr": 0.2}}}
    assert by_method(both)["fedprox"].solver.lr == 0.2
    assert by_method(both, {"solver": {"lr": 0.4}})["fedprox"].solver.lr == 0.4
    assert by_method({"fedprox": {"mu": 0.5}}, {"algorithm": {"mu": 0.7}})["fedprox"].tables()["algorithm"]["mu"] == 0.7


def test_layers_are_laid_over_each_other_at_any_depth() -> None:
    low = {"fedapm": {"rho": 1, "model": {"options": {"a": 1, "b": 2}}}}
    assert overlay(low, {"fedapm": {"model": {"options": {"b": 3}}}}, {"x": {"y": 1}}) == {
        "fedapm": {"rho": 1, "model": {"options": {"a": 1, "b": 3}}},
        "x": {"y": 1},
    }
    assert low["fedapm"] == {"rho": 1, "model": {"options": {"a": 1, "b": 2}}}


@pytest.mark.parametrize(
    ("own", "mentions"),
    [
        ({"solver": {"rl": 1}}, ["'fedprox.solver.rl'", "'lr'"]),
        ({"model": {"optoins": {}}}, ["'fedprox.model.optoins'", "'options'"]),
        ({"solver": {"lr": "fast"}}, ["fedprox.solver.lr", "'fast'"]),
        ({"solver": 3}, ["'fedprox.solver'", "[fedprox.solver]"]),
        ({"model": {"options": 3}}, ["fedprox.model.options"]),
        ({"mo": 3}, ["'fedprox.mo'", "'mu'"]),
        ({"slover": {"lr": 3}}, ["'fedprox.slover'", "'solver'"]),
        ({"mu": "much"}, ["fedprox.mu", "'much'"]),
        ({"engine": {"rounds": 3}}, ["'fedprox.engine'"]),
        ({"data": {"clients": 3}}, ["'fedprox.data'"]),
    ],
)
def test_what_is_wrong_in_a_methods_own_tables_is_named_as_it_stands_there(own: Any, mentions: list[str]) -> None:
    with refused(*mentions):
        by_method({"fedprox": own})


def test_a_method_that_is_not_compared_may_have_tables() -> None:
    assert by_method({"fedapm": {"solver": {"lr": 3.0}}})["fedavg"].solver.lr != 3.0


def test_targets_are_numbers_by_metric() -> None:
    assert parse_targets(["accuracy=0.62", " train_loss = 0.5 "]) == {"accuracy": 0.62, "train_loss": 0.5}
    assert parse_targets([]) == {}


QUICK = ["--seeds", "0", "--rounds", "1", "--set", "data.clients=4"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with tuned settings, only to be read."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "tuned.toml").write_text(TUNED)
    (folder / "e.toml").write_text("[solver]\nlr = 0.7\nepochs = 2\n[fedprox]\nmu = 0.9\n")
    code, _, err = fedapm(
        "compare", folder / "e.toml", "--methods", "fedprox,fedavg,local", "--tuned", folder, *QUICK,
        "--set", "solver.weight_decay=0.01", "--target", "accuracy=0.5", "--out", folder / "cmp",
    )  # fmt: skip
    assert code == 0, err
    return folder / "cmp"


def config(folder: Path, name: str) -> dict[str, Any]:
    return tomllib.loads(load_run(folder / name / "seed-0").config)


def test_tuned_settings_go_over_the_file_and_below_what_is_said_outright(compared: Path) -> None:
    fedprox, fedavg, local = (config(compared, name) for name in ("fedprox", "fedavg", "local"))
    assert fedprox["algorithm"]["mu"] == 0.25
    assert (fedprox["solver"]["lr"], fedavg["solver"]["lr"], local["solver"]["lr"]) == (0.05, 0.3, 0.7)
    assert {one["solver"]["epochs"] for one in (fedprox, fedavg, local)} == {2}
    assert {one["solver"]["weight_decay"] for one in (fedprox, fedavg, local)} == {0.01}
    assert fedavg["model"]["options"] == {"width": 32}
    assert fedprox["model"].get("options", {}) == {}


def test_a_comparison_is_judged_by_test_data(compared: Path) -> None:
    assert config(compared, "fedprox")["data"]["validation"] == 0


def test_a_comparison_notes_what_it_is_for(compared: Path) -> None:
    tuned = compared.parent / "tuned.toml"
    assert json.loads((compared / "compare.json").read_text("utf-8")) == {
        "targets": {"accuracy": 0.5},
        "tuned": {
            "file": str(compared.parent),
            "sha256": hashlib.sha256(tuned.read_bytes()).hexdigest(),
            "methods": ["fedprox", "fedavg", "local"],
        },
        "methods": ["fedprox", "fedavg", "local"],
        "seeds": [0],
    }


def test_a_comparison_that_grows_keeps_its_notes(compared: Path, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_bytes((compared / "compare.json").read_bytes())
    grown = About(["fedavg", "fedalt"], [0, 1]).over(tmp_path)
    assert grown["methods"] == ["fedprox", "fedavg", "local", "fedalt"]
    assert grown["seeds"] == [0, 1]
    assert grown["targets"] == {"accuracy": 0.5}
    assert grown["tuned"]["methods"] == ["fedprox", "fedavg", "local"]
    assert About(["fedavg"], [0], {"auc": 0.9}).over(tmp_path)["targets"] == {"auc": 0.9}
    with refused(str(tmp_path), "other tuned settings"):
        About(["fedavg"], [0], tuned={"sha256": "other", "methods": ["fedavg"]}).over(tmp_path)


def test_a_plain_comparison_has_no_tuned_settings(tmp_path: Path) -> None:
    assert fedapm("compare", "--methods", "local", *QUICK, "--out", tmp_path / "cmp")[0] == 0
    assert json.loads((tmp_path / "cmp" / "compare.json").read_text("utf-8")) == {
        "targets": {},
        "tuned": None,
        "methods": ["local"],
        "seeds": [0],
    }


def test_a_method_that_was_not_tuned_is_refused(compared: Path, tmp_path: Path) -> None:
    arguments = ["compare", "--methods", "fedavg,fedalt,fedapm", "--tuned", compared.parent / "tuned.toml"]
    code, out, err = fedapm(*arguments, *QUICK, "--out", tmp_path / "cmp")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "no settings for fedalt, fedapm" in err
    assert not (tmp_path / "cmp").exists()


def test_a_comparison_with_other_tuned_settings_goes_elsewhere(compared: Path, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[fedavg.solver]\nlr = 0.31\n")
    before = (compared / "compare.json").read_bytes()
    code, _, err = fedapm(
        "compare", "--methods", "fedavg", "--tuned", tmp_path / "other.toml", *QUICK, "--out", compared
    )
    assert code == 2
    assert "other tuned settings" in err
    assert (compared / "compare.json").read_bytes() == before
