"""A real federation on this machine whose programs can be killed, and what it must end with all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from fedapm.experiments import build
from fedapm.flower.client.versions import Versions
from fedapm.flower.local import federation as local
from fedapm.flower.local.processes import Process, descendants
from fedapm.flower.server.checkpoint import read_checkpoint
from fedapm.runs.records import JsonLines
from fedapm.simulation.stores.disk import checkpoint_files
from tests.flower.cases import Partly, same
from tests.helpers.running import play

PATIENCE = 420.0
"""Seconds for anything to happen; a busy machine starts programs slowly."""
Found = TypeVar("Found")


def wait_for(what: Callable[[], Found], seconds: float = PATIENCE) -> Found:
    """Wait until something is there."""
    end = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > end:
            raise TimeoutError("it did not happen")
        time.sleep(0.2)
    return found


def rounds(out: Path) -> list[dict[str, Any]]:
    """The records of a run so far."""
    return list(JsonLines(out / "rounds.jsonl"))


def fedapm(*arguments: object) -> subprocess.Popen[str]:
    """Start ``fedapm flower``."""
    words = [sys.executable, "-m", "fedapm", "flower", *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def server_process(made: local.LocalFederation) -> psutil.Process | None:
    """The process in which the server's app runs, if there is one."""
    for process in descendants(made.processes[0].pid):
        try:
            if "flwr-serverapp" in " ".join(process.cmdline()):
                return process
        except psutil.NoSuchProcess:
            continue
    return None


def kill(pid: int) -> None:
    """What no process can prepare for."""
    os.kill(pid, signal.SIGKILL)


def restarted_node(made: local.LocalFederation, k: int) -> Process:
    """What a supervisor does: start a node again until it stays."""
    while True:
        node = local.start_node(made, k)
        log = local.log_file(made.folder, node.name)
        length = log.stat().st_size

        def settled(node: Process = node, log: Path = log, length: int = length) -> bool:
            return not node.alive or "SuperNode ID" in log.read_text(errors="replace")[length:]

        wait_for(settled)
        if node.alive:
            return node
        time.sleep(8)


def differences(made: local.LocalFederation, out: Path) -> list[str]:
    """Where a run does not end as one process does in which the same clients were present in the same rounds."""
    records = rounds(out)
    if [record["round"] for record in records] != list(range(len(records))):
        return ["the rounds are not 0 to the last"]
    absent = {record["round"]: record["dropped"] for record in records}
    plan = build.plan(build.resolve(tomllib.loads((out / "config.toml").read_text())))
    engine = Partly(plan.problem, plan.algorithm, absent)
    expected, history = play(plan.problem, plan.algorithm, plan.schedule, engine=engine)
    saved = read_checkpoint(checkpoint_files(out / "checkpoints")[0])
    found = [] if same(saved.state.server, expected.server) else ["the server's state"]
    for k in range(made.nodes):
        versions = Versions(made.folder / "nodes" / str(k) / "state", saved.ledger.run, str(k))
        accepted = saved.ledger.entry(k).accepted
        if accepted and not same(versions.load(accepted).client_state.state, expected.store.get(k).state):
            found.append(f"the state of client {k}")
    for ours, theirs in zip(records, history, strict=True):
        for view, evaluation in (ours["evaluations"] or {}).items():
            for name, values in evaluation["per_client"].items():
                pairs = zip(values, theirs["evaluations"][view]["per_client"][name], strict=True)
                # who was away has no score
                if not all(mine is None or mine == other for mine, other in pairs):
                    found.append(f"{name} of round {ours['round']}")
    return found
