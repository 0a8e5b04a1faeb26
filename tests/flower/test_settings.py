"""The table [flower], and the app folder that is made from an experiment."""

import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from fedapm.algorithms import METHODS, PRESETS
from fedapm.flower.local.app_folder import MODULE, project, write_app
from fedapm.flower.settings import FlowerSettings, deployment
from tests.flower.cases import tables
from tests.helpers.unit import refused

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("given", "mentions"),
    [
        ({"minimum": 0}, ["flower.minimum", "greater than 0"]),
        ({"minimum": 4}, ["flower.minimum = 4", "3 clients"]),
        ({"retries": -1}, ["flower.retries"]),
        ({"timeout": 0}, ["flower.timeout", "seconds"]),
        ({"wait": float("inf")}, ["flower.wait"]),
        ({"timout": 3}, ["flower.timout", "timeout"]),
        ({"lost": "forget"}, ["flower.lost"]),
        ({"clients": ["a", "a"]}, ["'a' twice"]),
        ({"clients": ["a", " "]}, ["empty id"]),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, mentions):
    with refused(*mentions):
        deployment(tables(flower=given))


def test_the_population_is_fixed_by_the_file():
    assert deployment({"data": {"clients": 3}}).clients == ("0", "1", "2")
    assert len(deployment({}).clients) == 20
    named = deployment({"flower": {"clients": ["a", "b"]}, "engine": {"fraction": 1.0}})
    assert named.clients == ("a", "b")
    assert named.experiment.data.clients == 2
    with refused("data.clients = 3", "names 2"):
        deployment({"data": {"clients": 3}, "flower": {"clients": ["a", "b"]}})
    with refused("natural", "flower.clients"):
        deployment({"data": {"name": "motionsense", "partition": "natural"}})
    with refused("stationarity"):
        deployment({"engine": {"stationarity": True}})
    with refused("should be a table"):
        deployment({"flower": 3})
    with refused("unknown table"):
        deployment({"flour": {}})


def test_every_method_says_what_the_server_remembers():
    """So that a client which lost its state can be re-admitted with each of them."""
    declared = {name: kind.cumulative for name, kind in (METHODS | PRESETS).items()}
    assert None not in declared.values()
    assert {name for name, sums in declared.items() if sums} == {"fedapm", "fedapm-paper", "fedadmm", "scaffold"}


def test_the_example_app_is_what_is_written_for_the_example_experiment(tmp_path):
    example = ROOT / "examples" / "flower-app"
    given = tomllib.loads((ROOT / "examples" / "digits-flower.toml").read_text())
    write_app(tmp_path, given, Path("/var/lib/fedapm/run"))
    assert (example / "fedapm_app.py").read_text() == (tmp_path / "fedapm_app.py").read_text() == MODULE
    assert tomllib.loads((example / "pyproject.toml").read_text()) == project("/var/lib/fedapm/run")
    assert tomllib.loads((example / "experiment.toml").read_text()) == given
    assert deployment(given).clients == ("0", "1", "2")


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_flower_takes_the_example_app():
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    example = ROOT / "examples" / "flower-app"
    config, remarks = load_and_validate(example / "pyproject.toml")
    assert remarks == []
    assert config["tool"]["flwr"]["app"]["components"]["serverapp"] == "fedapm_app:server"
    content = build_fab_from_disk(example)
    assert b"experiment.toml" in content
    assert b"fedapm_app.py" in content


def test_the_settings_are_all_described_where_people_look():
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text("utf-8")
    for field in fields(FlowerSettings):
        assert f"| `{field.name}` |" in page, field.name


def test_nothing_imports_flower_before_it_is_used():
    names = ["flwr", "cryptography", "psutil", "trustme"]
    code = f"import sys, fedapm.cli.app, fedapm.flower; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
