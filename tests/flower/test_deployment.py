"""Flower's own programs on this machine, with TLS and keys, and what is left when they are killed."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from fedapm.experiments import build
from fedapm.flower.client.versions import Versions
from fedapm.flower.local import federation as local
from fedapm.flower.local.certificates import write_certificates, write_key
from fedapm.flower.local.processes import Process, at_home, descendants, stop
from fedapm.flower.server.checkpoint import read_checkpoint
from fedapm.runs.records import JsonLines
from tests.flower.cases import Partly, same
from tests.helpers.running import play

pytestmark = pytest.mark.deployment

NODES, ROUNDS = 3, 3
PATIENCE = 420.0
"""Seconds for anything to happen; a busy machine starts programs slowly."""
CONFIG = """
[data]
name = "digits"
clients = 3
[solver]
epochs = 1
[engine]
rounds = 3
seed = 1
fraction = 1.0
[flower]
minimum = 1
timeout = 90.0
retries = 3
wait = 200.0
"""


def wait_for(what, seconds: float = PATIENCE):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.2)
    return found


def rounds(out: Path) -> list[dict]:
    return list(JsonLines(out / "rounds.jsonl"))


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def fedapm(*arguments: object) -> subprocess.Popen:
    words = [sys.executable, "-m", "fedapm", "flower", *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def federation(tmp_path):
    made = local.up(tmp_path / "federation", NODES, lambda *_: None)
    extra: list[Process] = []
    yield made, extra
    stop(extra)
    assert local.down(made.folder) > NODES
    assert at_home(made.folder) == []


def restarted(made: local.LocalFederation, k: int) -> Process:
    """What a supervisor does: start the node again until it stays."""
    while True:
        node = local.start_node(made, k)
        log = local.log_file(made.folder, node.name)
        length = log.stat().st_size

        def settled(node=node, log=log, length=length):
            return not node.alive or "SuperNode ID" in log.read_text(errors="replace")[length:]

        wait_for(settled)
        if node.alive:
            return node
        time.sleep(8)


def test_killed_programs_leave_no_trace_in_the_result(tmp_path, federation):
    made, extra = federation
    out, config = tmp_path / "run", tmp_path / "experiment.toml"
    config.write_text(CONFIG)

    # strangers: a key nobody registered, and a node that trusts another authority
    write_key(tmp_path / "stranger")
    write_certificates(tmp_path / "other")
    stranger = local.start_node(made, 7, key=tmp_path / "stranger")
    known = local.node_key(made.folder, 0)
    distrusting = local.start_node(made, 8, key=known, authority=tmp_path / "other" / "ca.crt")
    extra += [stranger, distrusting]

    # a node dies in the middle of a round, and its supervisor sees to it while the run goes on
    first = fedapm("run", config, "--folder", made.folder, "--out", out)
    wait_for(lambda: len(rounds(out)) >= 1)
    os.kill(made.processes[2].pid, signal.SIGKILL)
    extra.append(made.processes[2])
    supervisor = ThreadPoolExecutor(1).submit(restarted, made, 1)

    # the server's process dies in the middle of another
    wait_for(lambda: len(rounds(out)) >= 2)
    (server,) = [p for p in descendants(made.processes[0].pid) if "flwr-serverapp" in command(p)]
    os.kill(server.pid, signal.SIGKILL)
    _, said = first.communicate(timeout=PATIENCE)
    assert first.returncode == 2, said
    assert "the same command goes on" in said or "ended early" in said
    assert len(rounds(out)) <= ROUNDS

    # the same command goes on, with the node that is back
    made.processes[2] = supervisor.result(PATIENCE)
    made.write()
    second = fedapm("run", config, "--folder", made.folder, "--out", out, "--json")
    answer, said = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    found = json.loads(answer)["clients"]
    assert [row["client"] for row in found] == ["0", "1", "2"]
    assert all(row["accuracy"] is not None for row in found)

    # nobody else was let in
    assert not stranger.alive
    log = local.log_file(made.folder, "node-7").read_text(errors="replace")
    assert "Failed to initialize the connection" in log
    assert "certificate verify failed" in local.log_file(made.folder, "node-8").read_text(errors="replace").lower()
    assert local.online(made) <= NODES

    # one process, with the same clients present in the same rounds, ends at the same place to the bit
    records = rounds(out)
    assert [r["round"] for r in records] == list(range(ROUNDS + 1))
    absent = {r["round"]: r["dropped"] for r in records}
    plan = build.plan(build.resolve(tomllib.loads((out / "config.toml").read_text())))
    engine = Partly(plan.problem, plan.algorithm, absent)
    expected, history = play(plan.problem, plan.algorithm, plan.schedule, engine=engine)
    saved = read_checkpoint(out / "checkpoints" / f"round-{ROUNDS:06d}.safetensors")
    assert same(saved.state.server, expected.server)
    for k in range(NODES):
        versions = Versions(made.folder / "nodes" / str(k) / "state", saved.ledger.run, str(k))
        accepted = saved.ledger.entry(k).accepted
        if accepted:
            assert same(versions.load(accepted).client_state.state, expected.store.get(k).state), k
    for ours, theirs in zip(records, history, strict=True):
        for view, evaluation in ours["evaluations"].items():
            for name, values in evaluation["per_client"].items():
                pairs = zip(values, theirs["evaluations"][view]["per_client"][name], strict=True)
                assert all(mine is None or mine == other for mine, other in pairs)
