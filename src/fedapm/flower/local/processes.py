"""Background processes: start them, recognize them in a later command, and stop them with all their children."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

PATIENCE = 10.0
"""Seconds a process has to exit by itself before it is killed."""


@dataclass(frozen=True)
class Process:
    """A process; its start time tells it from a later one with the same id."""

    name: str
    pid: int
    started: str

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Process:
        """Read a process back from its JSON fields."""
        return cls(str(fields["name"]), int(fields["pid"]), str(fields["started"]))

    def to_json(self) -> dict[str, Any]:
        """The process as JSON fields."""
        return asdict(self)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return started(self.pid) == self.started


def start(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
    """Start a process that outlives this one.

    Args:
        name: What to call it.
        command: The program and its arguments.
        log: The file its output is appended to.
        environment: Its environment variables.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
        )
    # it is meant to outlive this process, and Python would complain that nobody waited for it
    child.returncode = 0
    return Process(name, child.pid, started(child.pid) or "")


def stop(processes: Iterable[Process]) -> list[int]:
    """End processes and all their descendants; returns the ids of those that had to be killed."""
    # looked up first, because children of an exited process are no longer known as its children
    family = [member for process in processes if process.alive for member in _with_descendants(process.pid)]
    remaining = _end(family, psutil.Process.terminate)
    _end(remaining, psutil.Process.kill)
    return [process.pid for process in remaining]


def descendants(pid: int) -> list[psutil.Process]:
    """All children of a process, their children and so on."""
    return _with_descendants(pid)[1:]


def at_home(folder: Path) -> list[Process]:
    """The running processes whose FLWR_HOME lies in a folder.

    A program that was killed may leave some behind that are nobody's children any more.
    """
    return [
        Process("", process.pid, when)
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("FLWR_HOME", "").startswith(f"{folder}/")
        and (when := started(process.pid)) is not None
    ]


def started(pid: int) -> str | None:
    """When a process started, in seconds since boot; None where it has exited or is a zombie."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        # since boot, because psutil's own times move whenever the system's clock is set
        return f"{process.create_time() - psutil.boot_time():.2f}"
    except psutil.NoSuchProcess:
        return None


def _with_descendants(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _end(processes: Sequence[psutil.Process], send: Callable[[psutil.Process], None]) -> list[psutil.Process]:
    """Send processes a signal; returns those that still run after a while."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            send(process)
    end = time.monotonic() + PATIENCE
    # not psutil.wait_procs: it takes a zombie that nobody reaps for running
    while (remaining := [p for p in processes if _runs(p)]) and time.monotonic() < end:
        time.sleep(0.05)
    return remaining


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
