"""The commands for Flower: what they refuse, and that they need the extra only when they are used."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from fedapm.cli import flower as cli_flower
from fedapm.flower.local import federation as local
from fedapm.flower.local import flower_cli as commands
from fedapm.flower.local import follow
from fedapm.flower.local.flower_cli import FlowerCli
from fedapm.flower.local.processes import Process, started
from fedapm.flower.settings import deployment
from fedapm.runs.records import load_run
from tests.flower.cases import Case
from tests.helpers.cli import Outcome, assert_refused, fedapm
from tests.helpers.unit import refused


def flower(*arguments):
    """fedapm flower …"""
    return fedapm("flower", *arguments)


def test_a_federation_that_is_not_there_is_refused(tmp_path):
    assert_refused(flower("status", "--folder", tmp_path / "none"), "holds no federation", "fedapm flower up")
    with refused("holds no federation"):
        local.down(tmp_path)


def test_bad_folders_are_refused(tmp_path):
    with refused("at least one node"):
        local.up(tmp_path / "f", 0, lambda *_: None)
    (tmp_path / "file").write_text("x")
    with refused("is a file"):
        local.up(tmp_path / "file", 1, lambda *_: None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with refused("something else"):
        local.up(tmp_path / "mine", 1, lambda *_: None)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "federation.json").write_text('{"port": "x"}')
    with refused("does not describe"):
        local.LocalFederation.read(tmp_path / "odd")


def federation(folder, nodes, alive=True):
    """A description of programs, with this process in their place."""
    me = Process("superlink", *_me(alive))
    made = local.LocalFederation(folder, 1, [me, *(Process(f"node-{k}", *_me(alive)) for k in range(nodes))])
    folder.mkdir()
    made.write()
    return made


def _me(alive):
    return os.getpid(), (started(os.getpid()) or "") if alive else "long ago"


def test_a_run_is_refused_where_it_cannot_work(tmp_path):
    federation(tmp_path / "two", 2)
    config = tmp_path / "e.toml"
    config.write_text("[data]\nclients = 3\n")
    assert_refused(flower("run", config, "--folder", tmp_path / "two", "--out", tmp_path / "o"), "3 clients", "2 nodes")
    config.write_text("[flower]\nminimal = 3\n")
    assert_refused(flower("run", config, "--out", tmp_path / "o"), "flower.minimal", "minimum")
    assert_refused(flower("run", tmp_path / "no.toml"), "does not exist")
    assert not (tmp_path / "o").exists()
    federation(tmp_path / "dead", 3, alive=False)
    config.write_text("[data]\nclients = 3\n")
    assert_refused(flower("run", config, "--folder", tmp_path / "dead"), "is not up", "superlink")


def test_ctrl_c_stops_the_run_and_says_that_it_can_go_on(tmp_path, monkeypatch):
    federation(tmp_path / "three", 3)
    config = tmp_path / "e.toml"
    config.write_text("[data]\nclients = 3\n")
    asked = []

    def call(self, *arguments):
        asked.append(arguments)
        return {"run-id": "17"}

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(FlowerCli, "call", call)
    monkeypatch.setattr(follow, "follow", interrupted)
    done = flower("run", config, "--folder", tmp_path / "three", "--out", tmp_path / "o")
    assert done.code == 130
    assert "The same command goes on" in done.err
    assert [words[0] for words in asked] == ["run", "stop"]
    assert asked[1][1] == "17"
    app = tmp_path / "three" / "fedapm-app"
    assert tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["out"] == str(
        tmp_path / "o"
    )


def test_a_second_federation_in_the_same_folder_is_refused(tmp_path):
    federation(tmp_path / "f", 1)
    with refused("up already", "fedapm flower down"):
        local.up(tmp_path / "f", 1, lambda *_: None)


def test_a_federation_forgets_what_a_killed_superlink_believed(tmp_path, monkeypatch):
    """The database of one that was killed says that its nodes are online, which they are not."""
    folder = federation(tmp_path / "f", 1, alive=False).folder
    (folder / "superlink.db").touch()
    (folder / "superlink.db-wal").touch()
    found = []

    def superlink(made):
        found.append(sorted(path.name for path in folder.glob("superlink.db*")))
        return Process("superlink", *_me(alive=True))

    monkeypatch.setattr(local, "start_superlink", superlink)
    monkeypatch.setattr(local, "wait_for_superlink", lambda made: None)
    monkeypatch.setattr(local, "start_node", lambda made, k, nodes: Process(f"node-{k}", *_me(alive=k == 0)))
    monkeypatch.setattr(local, "log_file", lambda *_: tmp_path / "log")
    monkeypatch.setattr(local, "online", lambda made: 2)
    monkeypatch.setattr(local, "stop", lambda processes: None)
    monkeypatch.setattr(FlowerCli, "register", lambda self, key: None)
    (tmp_path / "log").write_text("refused\n")
    with refused("node-1 has exited (refused)"):
        local.up(folder, 2, lambda *_: None)
    assert found == [[]]


def test_stopping_what_has_stopped_is_fine(tmp_path):
    federation(tmp_path / "f", 2, alive=False)
    assert local.down(tmp_path / "f") == 0


def test_readmission_goes_through_the_command_line(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    case.serve()
    done = flower("readmit", "west", "--out", case.out)
    assert done.code == 0, done.err
    assert "begins anew" in done.out
    note = json.loads((case.out / "readmit" / "client-west.json").read_text())
    assert note["version"] == case.saved().ledger.entry(3).accepted
    assert_refused(flower("readmit", "wst", "--out", case.out), "'wst'", "west")


def test_results_are_shown_by_client(tmp_path):
    case = Case.of(tmp_path, "ditto", engine={"rounds": 2})
    records = case.serve()
    rows = cli_flower._client_rows(load_run(case.out))
    assert [row["client"] for row in rows] == list(case.plan.clients)
    assert [row["P.accuracy"] for row in rows] == records[-1]["evaluations"]["P"]["per_client"]["accuracy"]
    console = Console(record=True, width=200)
    console.print(cli_flower._client_table(load_run(case.out)))
    text = console.export_text()
    assert "Ditto after round 2, test scores" in text
    assert all(client in text for client in case.plan.clients)


def test_flowers_own_errors_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    with refused("flwr list failed"):
        FlowerCli("nowhere", tmp_path / "home").status("1")


def test_flower_is_told_to_leave_the_network_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    made = commands.environment(tmp_path)
    assert made["FLWR_TELEMETRY_ENABLED"] == "0"
    assert made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert made["FLWR_HOME"] == str(tmp_path)
    assert made["PATH"].endswith(":/usr/bin")
    assert commands.program("flower-superlink").endswith("flower-superlink")
    with refused("fedapm[flower]"):
        commands.program("flower-nothing")


def test_many_nodes_of_a_machine_ask_for_work_no_more_often_than_few(tmp_path):
    name = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
    assert commands.environment(tmp_path)[name] == commands.environment(tmp_path, nodes=2)[name] == "0.1"
    assert commands.environment(tmp_path, nodes=20)[name] == "1"


def test_relative_places_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = cli_flower._absolute({"data": {"root": "data", "name": "digits"}})
    assert made["data"] == {"root": str(tmp_path / "data"), "name": "digits"}
    assert cli_flower._absolute({"data": {"name": "digits"}}) == {"data": {"name": "digits"}}


def test_without_the_extra_the_command_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['flwr'] = None; sys.argv = ['fedapm', 'flower', 'down']; import fedapm.cli.app as c"
    code += "; c.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert_refused(Outcome(done.returncode, done.stdout, done.stderr), "fedapm[flower]")


@pytest.mark.parametrize("command", ["up", "run", "down", "status", "readmit"])
def test_help_is_help(command):
    done = flower(command, "--help")
    assert done.code == 0
    assert "Usage: " in done.out


def test_the_example_is_an_experiment():
    path = Path(__file__).parents[2] / "examples" / "digits-flower.toml"
    assert len(deployment(tomllib.loads(path.read_text())).clients) == 3


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_a_run_on_flower_gets_a_report_a_card_and_logs(tmp_path, monkeypatch, kind):
    pytest.importorskip(kind)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    case = Case.of(tmp_path, engine={"rounds": 2})
    config = tmp_path / "experiment.toml"
    config.write_text(tomli_w.dumps(case.given))
    federation(tmp_path / "federation", len(case.plan.clients))
    monkeypatch.setattr(FlowerCli, "call", lambda self, *arguments: {"run-id": "17"})
    monkeypatch.setattr(follow, "is_locked", lambda out: case.out.exists() or bool(case.serve()))
    arguments = ["run", config, "--folder", tmp_path / "federation", "--out", case.out, "--log", kind]
    done = flower(*arguments)
    assert done.code == 0, done.err
    assert "round 2/2" in done.err
    assert "after round 2, test scores" in done.out
    assert (case.out / "report.html").is_file()
    card = json.loads((case.out / "card.json").read_text())
    assert card["rerun"].startswith("fedapm flower run ")
    assert card["engines"] == {"flower": 1}
    log = case.out / ("mlflow.db" if kind == "mlflow" else "logs")
    assert log.exists()
    assert flower(*arguments).code == 0, "a complete run is left as it is"


def test_an_unknown_log_is_refused_before_the_run(tmp_path):
    config = tmp_path / "e.toml"
    config.write_text("[data]\nclients = 3\n")
    assert_refused(flower("run", config, "--log", "tensorbord", "--out", tmp_path / "o"), "'tensorboard'")
