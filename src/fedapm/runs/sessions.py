"""When somebody worked on an experiment folder and what it cost, one line for each command that did.

The rounds' own wall times are in the run folders. Processor time and dates are not, and a run that is interrupted and
resumed has several of each.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedapm.errors import Diverged, FedapmError, Interrupted
from fedapm.runs.files import write_atomic
from fedapm.runs.layout import SESSIONS


@dataclass(frozen=True)
class Session:
    """One command: when it began and ended (UTC), and how long it and its processors took."""

    began: str
    ended: str
    wall_seconds: float
    processor_seconds: float


@contextmanager
def session(folder: Path) -> Iterator[None]:
    """Note what a block of work on a folder cost, also where it is interrupted or diverges.

    A command that was refused did no work: it leaves no line, and no folder.
    """
    began, wall, processor = _now(), time.perf_counter(), _processor_seconds()
    worked = False
    try:
        yield
        worked = True
    except BaseException as error:
        worked = isinstance(error, Interrupted | Diverged) or not isinstance(error, FedapmError)
        raise
    finally:
        if worked and folder.is_dir():
            spent = {
                "wall_seconds": round(time.perf_counter() - wall, 3),
                "processor_seconds": round(_processor_seconds() - processor, 3),
            }
            # a full disk is met here a second time; the first time is the one to tell about
            with suppress(OSError):
                _append(folder / SESSIONS, {"began": began, "ended": _now()} | spent)


def read_sessions(folder: Path) -> list[Session]:
    """The commands that worked on a folder, in order; lines that are not about one are passed over."""
    path = folder / SESSIONS
    found = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
            spent = float(row["wall_seconds"]), float(row["processor_seconds"])
            found.append(Session(str(row["began"]), str(row["ended"]), *spent))
        except (ValueError, TypeError, KeyError):
            continue
    return found


def _append(path: Path, row: dict[str, str | float]) -> None:
    before = path.read_text("utf-8") if path.is_file() else ""
    write_atomic(path, before + json.dumps(row) + "\n")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _processor_seconds() -> float:
    """Of this process and of the worker processes that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
