"""Background processes: started, known again later, and stopped with all they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc/self").parent if Path("/proc/self/stat").is_file() else Path("/nowhere")
PATIENCE = 10.0
"""Seconds a process has to end by itself before it is killed."""


@dataclass(frozen=True)
class Process:
    """A process, told from a later one with the same number by when it started."""

    name: str
    pid: int
    started: str

    @classmethod
    def read(cls, note: Mapping[str, Any]) -> Process:
        """A process as a file has it."""
        return cls(str(note["name"]), int(note["pid"]), str(note["started"]))

    def note(self) -> dict[str, Any]:
        """The process as a file has it."""
        return asdict(self)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return started(self.pid) == self.started


def start(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
    """Start a process that outlives this one; what it prints goes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        made = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
        )
    # it is meant to outlive this process, and Python would complain that nobody waited for it
    made.returncode = 0
    return Process(name, made.pid, started(made.pid) or "")


def stop(processes: Iterable[Process]) -> list[int]:
    """End processes and everything they started; gives the ids of those that had to be killed."""
    roots = [process for process in processes if process.alive]
    # looked up first, because what a process started is nobody's child once it is gone
    family = [p for root in roots for p in (root, *_descendants(root.pid))]
    for process in family:
        _signal(process, signal.SIGTERM)
    left = _wait(family, PATIENCE)
    for process in left:
        _signal(process, signal.SIGKILL)
    _wait(left, PATIENCE)
    return [process.pid for process in left]


def at_home(folder: Path) -> list[Process]:
    """The processes whose Flower home is in a folder, where the system tells (Linux).

    A program that was killed may leave some behind that nobody else would find.
    """
    mark = f"FLWR_HOME={folder}/".encode()
    found = []
    for path in PROC.iterdir() if PROC.is_dir() else ():
        try:
            mine = path.name.isdigit() and any(v.startswith(mark) for v in (path / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if mine and (row := _row(int(path.name))) is not None:
            found.append(Process("", int(path.name), row[1]))
    return found


def started(pid: int) -> str | None:
    """When a process started, as the system writes it; None where there is no such process."""
    _reap(pid)
    row = _row(pid) if PROC.is_dir() else _rows_by_ps().get(pid)
    return row[1] if row is not None else None


def _reap(pid: int) -> None:
    """A child of this process that has ended is not there any more."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except OSError:
        return


def _row(pid: int) -> tuple[int, str] | None:
    """A process's parent and when it started, as Linux tells; None where it is gone or only not buried yet."""
    try:
        # the name of the program comes in brackets and may hold anything
        state, parent, *rest = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state == "Z" else (int(parent), rest[17])


def _rows_by_ps() -> dict[int, tuple[int, str]]:
    """The same of all processes, as other systems tell."""
    command = ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line.split(None, 3) for line in found.stdout.splitlines()]
    return {int(pid): (int(parent), when) for pid, parent, state, when in rows if not state.startswith("Z")}


def _descendants(pid: int) -> list[Process]:
    if PROC.is_dir():
        ids = [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
        rows = {id: row for id in ids if (row := _row(id)) is not None}
    else:
        rows = _rows_by_ps()
    family, todo = [], [pid]
    while todo:
        parent = todo.pop()
        children = [id for id, row in rows.items() if row[0] == parent]
        family += [Process("", child, rows[child][1]) for child in children]
        todo += children
    return family


def _signal(process: Process, number: signal.Signals) -> None:
    if process.alive:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def _wait(processes: Sequence[Process], seconds: float) -> list[Process]:
    """Those that are still there after so many seconds at most."""
    end = time.monotonic() + seconds
    left = [p for p in processes if p.alive]
    while left and time.monotonic() < end:
        time.sleep(0.05)
        left = [p for p in left if p.alive]
    return left
