"""What a process and everything it started have used: processor time and memory. Standard library only, Linux."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def has_children() -> bool:
    """Whether this process has started others that still run."""
    return len(tree(os.getpid())) > 1


class Clock:
    """Measures wall and processor time of this process and its descendants, without the time measuring takes."""

    def __init__(self, alone: bool = False) -> None:
        """Start.

        Args:
            alone: Whether there are no descendants, so that nobody has to look for them.
        """
        self._alone = alone
        self._others = 0.0 if alone else _others()
        self._own, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """Seconds since the clock was made."""
        wall, own = time.perf_counter() - self._wall, time.process_time() - self._own
        return {"wall": wall, "cpu": own if self._alone else own + _others() - self._others}


def _others() -> float:
    """Processor time of this process's descendants, those that ended included."""
    total = 0.0
    for pid in tree(os.getpid()):
        with suppress(OSError):
            if pid != os.getpid():
                # Linux has a clock for every process; /proc counts in hundredths of a second only
                total += time.clock_gettime((~pid << 3) | 2)
        if fields := _stat(pid):
            total += (int(fields[13]) + int(fields[14])) / TICK  # children that ended and were waited for
    return total


def peak_mib() -> float:
    """The largest resident size each process of the tree has had, added up; a shared page counts in each of them."""
    return sum(_kib(pid, "status", "VmHWM:") for pid in tree(os.getpid())) / 1024


def now_mib() -> float:
    """The memory the tree holds now; a page shared by several of its processes counts once."""
    return sum(_kib(pid, "smaps_rollup", "Pss:") for pid in tree(os.getpid())) / 1024


def started(pid: int) -> str | None:
    """When a process was started; a later process of the same number has another time."""
    fields = _stat(pid)
    return fields[19] if fields else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold spaces; nothing where the process is gone."""
    with suppress(OSError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return []


def _kib(pid: int, file: str, field: str) -> int:
    with suppress(OSError):
        for line in (PROC / str(pid) / file).read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0
