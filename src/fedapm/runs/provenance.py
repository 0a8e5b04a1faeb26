"""Provenance: what was run, where and for how long, without saying by whom."""

from __future__ import annotations

import getpass
import json
import math
import os
import platform
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedapm.errors import Diverged, FedapmError, Interrupted
from fedapm.runs.files import write_atomic
from fedapm.runs.layout import SESSIONS

RERUN = "rerun"
"""The folder that a repetition writes to."""
OUTPUT_OPTIONS, OUTPUT_FLAGS = ("--out", "--log"), ("--resume", "--json")
"""Options that say where and how results are shown, and not what is computed."""
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")
"""The packages that results may depend on."""


def command_line(arguments: Sequence[str]) -> str:
    """The command with these arguments, ready for a shell, without the name of whoever gave it."""
    return " ".join(["fedapm", *map(_quoted, arguments)])


def private(text: str) -> str:
    """A text without the user's home folder and name in its paths."""
    home = _home()
    if home is not None:
        text = re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)
    user = _user()
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "USER", text) if user is not None else text


def repeating(command: str) -> str:
    """The command that computes the same again into a folder of its own."""
    computing: list[str] = []
    words = iter(shlex.split(command))
    for word in words:
        name, equals, _ = word.partition("=")
        if name in OUTPUT_OPTIONS:
            if not equals:
                next(words, None)
        elif word not in OUTPUT_FLAGS:
            computing.append(word)
    return " ".join([*map(_quoted, computing), "--out", RERUN])


def hardware(devices: Iterable[str] = ()) -> dict[str, Any]:
    """Processor, cores, memory, the graphics cards that were used, and the operating system."""
    machine: dict[str, Any] = {
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "system": _system(),
    }
    cards = sorted({name for device in devices if (name := _card(device)) is not None})
    return machine | ({"gpu": cards} if cards else {})


def versions(more: Iterable[str] = ()) -> dict[str, str]:
    """Versions of Python and of the installed packages that matter, without importing any."""
    installed = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


@dataclass(frozen=True)
class CommandTime:
    """One command: when it began and ended (UTC), and how long it and its processors took."""

    began: str
    ended: str
    wall_seconds: float
    processor_seconds: float


@contextmanager
def timed(folder: Path) -> Iterator[None]:
    """Write down how long a block of work on a folder takes, also where it is interrupted or diverges.

    Rounds have wall times of their own; this adds processor time and dates, one line for each command that worked on
    the folder. A command that was refused did no work: it leaves no line, and no folder.
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
            # a full disk fails here a second time; the first error is the one to show
            with suppress(OSError):
                _append(folder / SESSIONS, {"began": began, "ended": _now()} | spent)


def command_times(folder: Path) -> list[CommandTime]:
    """The commands that worked on a folder, in order; lines that are not about one are passed over."""
    path = folder / SESSIONS
    times = []
    for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
            spent = float(row["wall_seconds"]), float(row["processor_seconds"])
            dates = str(row["began"]), str(row["ended"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
        if all(map(math.isfinite, spent)):
            times.append(CommandTime(*dates, *spent))
    return times


def _quoted(word: str) -> str:
    text = private(word)
    # a shell expands the tilde only where it is not quoted
    return f"~/{shlex.quote(text[2:])}" if text.startswith("~/") and text != "~/" else shlex.quote(text)


def _home() -> str | None:
    try:
        home = str(Path.home()).rstrip("/\\")
    except RuntimeError:
        return None
    return home or None


def _user() -> str | None:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None
    return user if len(user) > 1 and user != "root" else None


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Hardware") and value.strip():
                return value.strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        sysctl = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        if sysctl.stdout.strip():
            return sysctl.stdout.strip()
    return platform.processor() or platform.machine() or "unknown"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _system() -> str:
    """The system and its release; the distribution where it says its name."""
    kernel = f"{platform.system()} {platform.release()}".strip()
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except (OSError, KeyError, AttributeError):
        return kernel


def _card(device: str) -> str | None:
    if device == "cpu":
        return None
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return str(torch.cuda.get_device_name(torch.device(device)))
    return device


def _append(path: Path, row: dict[str, str | float]) -> None:
    before = path.read_bytes() if path.is_file() else b""
    write_atomic(path, before + f"{json.dumps(row)}\n".encode())


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _processor_seconds() -> float:
    """Of this process and of the worker processes that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
