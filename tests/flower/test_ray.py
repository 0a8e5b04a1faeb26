"""The same two apps in Flower's simulation, for users who have a Ray cluster."""

import json
import subprocess
import sys

import pytest

from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.flower.local.flower_cli import environment
from fedapm.runs.records import load_run

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from flwr.simulation import run_simulation
from fedapm.flower import client_app, server_app

tables, out, states = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
init = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "num_cpus": 2}
resources = {"num_cpus": 1, "num_gpus": 0.0}
run_simulation(
    server_app(tables, out=out),
    client_app(state=states),
    num_supernodes=3,
    backend_config={"init_args": init, "client_resources": resources},
)
"""


def test_a_simulation_on_ray_gives_the_records_of_one_process(tmp_path):
    pytest.importorskip("ray")
    tables = {
        "data": {"name": "digits", "clients": 3},
        "solver": {"epochs": 1},
        "engine": {"rounds": 2, "fraction": 0.7, "engine": "sequential"},
    }
    script = tmp_path / "simulate.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), json.dumps(tables), str(tmp_path / "run"), str(tmp_path / "states")]
    told = environment(tmp_path) | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=told)
    assert done.returncode == 0, done.stderr
    execute(build.plan(build.resolve(tables)), tmp_path / "one", progress=False)
    assert load_run(tmp_path / "run").rounds == load_run(tmp_path / "one").rounds
    assert len(list((tmp_path / "states").rglob("model.safetensors"))) == 3
