"""Commands in forked children: fedapm is imported once, and each try costs only its own work."""

from __future__ import annotations

import csv
import gc
import hashlib
import os
import re
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attacks.tally import Outcome

TIMEOUT = 120.0
"""Seconds after which a command hangs; the tiny ones here take less than one."""
NOT_COMPARED = ("sessions.jsonl", "timings.jsonl", "measured.json", "card.json", "card.md", "trials.db", "tune.json")
"""Files that hold times, and databases: equal runs differ in them. So do rows of clients, where unused ones lie about;
what is in them shows in the models."""
TIMES = ("cpu_seconds", "cpu_to_level")
"""Columns of a table that hold times."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """As a shell has it: negative for a signal that nothing answered."""
    said: str
    hung: bool = False

    @property
    def clean(self) -> bool:
        """Whether a person would see no traceback, and one line where it failed."""
        lines = [line for line in self.said.splitlines() if line.startswith("fedapm: ")]
        failed = self.code not in (0, -signal.SIGKILL)
        return "Traceback" not in self.said and (not failed or bool(lines))


def command(*arguments: str) -> Callable[[], None]:
    """What a child does to run the command line."""

    def body() -> None:
        from fedapm.cli import app

        sys.argv = ["fedapm", *arguments]
        app.main()

    return body


def prepare() -> None:
    """Import once what the commands need, and let drawing, which touches no file, cost nothing."""
    import torch

    torch.set_num_threads(1)
    import alembic.util
    import optuna
    import sklearn.datasets  # noqa: F401
    import typer

    from fedapm import report
    from fedapm.cli import app, session  # noqa: F401
    from fedapm.data.sets import digits  # noqa: F401
    from fedapm.experiments import build
    from fedapm.experiments.study import part
    from fedapm.report.split import page as split_page
    from fedapm.report.study import page as study_page
    from fedapm.report.sweep import page as sweep_page

    def drawing(*_: Any) -> str:
        return "<p>drawn</p>"

    pages = ((sweep_page, "render_sweep"), (split_page, "render_split"), (study_page, "render_study"))
    for module, name in ((report, "render"), (part, "render"), *pages):
        setattr(module, name, drawing)
    split_page.split_png = lambda *_: b"drawn"
    optuna.storages.RDBStorage("sqlite://")  # children would each import what it needs
    load, kept = build.federation, {}

    def federation(data: Any) -> Any:
        key = repr(data)
        if key not in kept:
            kept[key] = load(data)
        return kept[key]

    build.federation = federation
    # typer makes all commands anew each time, and alembic compiles all that a database has ever looked like
    typer.main.get_command = cache(typer.main.get_command)
    alembic.util.load_python_file = cache(alembic.util.load_python_file)


def warm(body: Callable[[], None], said: Path) -> None:
    """Run a body in this process, so that children find imported, compiled and loaded what it needs.

    Args:
        body: A command that works.
        said: A file for what it prints.
    """
    before, threads = signal.getsignal(signal.SIGINT), threading.enumerate()
    with said.open("w") as file, redirect_stdout(file), redirect_stderr(file), suppress(SystemExit):
        body()
    signal.signal(signal.SIGINT, before)
    # children would find the locks that such a thread holds, but not the thread
    if left := [thread for thread in threading.enumerate() if thread not in threads]:
        raise RuntimeError(f"a command left threads behind: {left}.")
    # otherwise each child goes through all of it whenever it collects garbage, and copies it
    gc.collect()
    gc.freeze()


def start(body: Callable[[], None], said: Path) -> int:
    """Fork a child that runs a body with its output in a file; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setpgid(0, 0)
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        body()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def finish(child: int, said: Path, timeout: float = TIMEOUT) -> Ended:
    """Wait for a child; one that does not end in time is killed with all it started."""
    handle = os.pidfd_open(child)
    ended, _, _ = select.select([handle], [], [], timeout)
    os.close(handle)
    if not ended:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return Ended(-signal.SIGKILL, said.read_text("utf-8", "replace"), hung=True)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, said.read_text("utf-8", "replace") if said.is_file() else "")


def run(body: Callable[[], None], said: Path, timeout: float = TIMEOUT) -> Ended:
    """Run a body in a child to its end."""
    return finish(start(body, said), said, timeout)


@contextmanager
def workshop(name: str) -> Any:
    """A folder for an attack, on memory where there is such a place; it goes with the attack."""
    root = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
    folder = root / f"fedapm-attack-{name}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def picture(folder: Path) -> dict[str, str]:
    """A digest of every file that equal runs have in common: of checkpoints the newest, which is that of the end."""
    older = {
        path for place in folder.rglob("checkpoints") for path in sorted(place.glob("round-*"))[:-1] if place.is_dir()
    }
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(_without_times(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NOT_COMPARED and path.suffix != ".rows" and path not in older
    }


def _without_times(path: Path) -> bytes:
    """What a file says beside the times in a table's columns."""
    if path.suffix != ".csv":
        return path.read_bytes()
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]
    return repr(rows).encode()


TEMPORARY = re.compile(r"\.[a-z0-9_]{8}\.tmp$")
"""The end of a temporary file's name, which is drawn."""
NUMBER = re.compile(rb"\d+(\.\d+)?(e-?\d+)?")


def left_behind(folder: Path) -> str:
    """A digest of everything a command left in a folder and beside it: names, and what is in the files.

    Two folders with the same digest differ in nothing but in times, in process numbers and in the names that temporary
    files were drawn, so whatever goes on in one of them would go on in the other in the same way.

    Args:
        folder: The command's folder.
    """
    total = hashlib.sha256()
    for path in sorted([*folder.rglob("*"), *folder.parent.glob(f".{folder.name}*")]):
        name = TEMPORARY.sub(".tmp", path.relative_to(folder.parent).as_posix())
        content = path.read_bytes() if path.is_file() else b"/"
        if any(part in NOT_COMPARED for part in (path.name, name.rpartition("/")[2].strip(".").removesuffix(".tmp"))):
            # how many numbers there are, but not which
            content = NUMBER.sub(b"0", content)
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def judged(last: Ended, found: dict[str, str], expected: dict[str, str]) -> tuple[Outcome, str]:
    """What became of a try after its last command, which nothing disturbed."""
    if last.hung:
        return Outcome.HANG, "the command after it did not end"
    if "Traceback" in last.said:
        return Outcome.TRACEBACK, last.said.strip().splitlines()[-1]
    if last.code:
        return Outcome.LOST, (last.said.strip().splitlines() or ["no word"])[-1]
    differing = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if differing:
        return Outcome.DIFFERING, ", ".join(differing[:4])
    return Outcome.SURVIVED, ""
