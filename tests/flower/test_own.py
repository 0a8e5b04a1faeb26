"""Own data and networks on Flower, node by node: the same as in one process."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import tomli_w

from fedapm.cli.flower import _own_data
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import read_toml
from fedapm.flower import client_app
from fedapm.flower.local.app_folder import write_app
from fedapm.flower.server.run import serve
from fedapm.flower.settings import deployment
from fedapm.runs.records import JsonLines
from tests.flower.grid import InProcessGrid
from tests.helpers.own import PEOPLE, arrays, project


@pytest.mark.parametrize("data", ["file", "people_data:load", "people_data:for_node", "data-file"])
def test_a_node_finds_its_own_part_and_the_app_its_modules(data, tmp_path):
    tables = read_toml(project(tmp_path / "project"))
    if ":" in data:
        tables["data"] = {"factory": data, "folder": str(tmp_path / "project")}
    tables = _own_data(tables)
    assert list(tables["flower"]["clients"]) == list(PEOPLE)
    reference = execute(build.plan(build.resolve(tables)), progress=False)
    app_folder = write_app(tmp_path / "app", tables, tmp_path / "run")
    written = tomllib.loads((app_folder / "experiment.toml").read_text())
    assert "folder" not in written["model"]
    assert (app_folder / "people_network.py").is_file()
    nodes = {k: {"client-id": name} for k, name in enumerate(PEOPLE, start=100)}
    if ":" in data:
        # the module is in the app; what it reads is on every node
        (app_folder / "people.npz").write_bytes((tmp_path / "project" / "people.npz").read_bytes())
    if data == "data-file":
        given, classes = arrays(), ["run", "sit", "walk"]
        tables["data"] |= {"class_names": classes}
        written["data"] |= {"class_names": classes}
        for node, name in zip(nodes.values(), PEOPLE, strict=True):
            mine = given["client"] == name
            np.savez(tmp_path / f"{name}.npz", x=given["x"][mine], y=given["y"][mine])
            node["data-file"] = str(tmp_path / f"{name}.npz")
    grid = InProcessGrid(client_app(folder=app_folder), tmp_path / "nodes", nodes)
    (app_folder / "experiment.toml").write_text(tomli_w.dumps(written))
    serve(grid.link(), deployment(read_toml(app_folder / "experiment.toml")), tmp_path / "run")
    last = list(JsonLines(tmp_path / "run" / "rounds.jsonl"))[-1]
    expected = reference.records[-1]["evaluations"]["model"]["per_client"]["accuracy"]
    assert last["evaluations"]["model"]["per_client"]["accuracy"] == expected
