"""Crash points: a command fails, or is killed, at each of its file operations in turn, and is then started again.

The operations are those below the command's folder: making a file, writing (the first half of it gets through),
syncing, renaming, removing, making a folder. A full disk stays full until the command has ended; everything else
happens once.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks._child import judged, left_behind, picture, prepare, run, warm, workshop
from attacks._commands import COMMANDS, Attacked
from attacks.registry import attack
from attacks.tally import Outcome, Tally

FAILURES = ("ENOSPC", "EIO", "kill -9", "KeyboardInterrupt", "MemoryError")
MANY = 149
"""In a sample every so many-th point is tried."""
MINUTES = {"study": 15, "split": 12}
"""About how long those take that take longer than the others."""


class Trap:
    """Counts file operations below a folder, and springs at one of them.

    Args:
        folder: Where operations count.
        at: The operation to fail at; 0 only counts.
        failure: How to fail.
        report: A file that learns how many operations there were.
    """

    def __init__(self, folder: Path, at: int, failure: str, report: Path) -> None:
        self.folder, self.at, self.failure, self.report = folder, at, failure, report
        self.count = 0
        self.process = os.getpid()

    def concerns(self, target: Any) -> bool:
        """Whether an operation on a path or an open file counts."""
        if os.getpid() != self.process:
            return False
        try:
            path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else Path(target).absolute()
        except (OSError, TypeError):
            return False
        return path.is_relative_to(self.folder)

    def step(self, half: Callable[[], None] = lambda: None, grows: bool = True) -> None:
        """One operation begins: it fails here if its turn has come.

        Args:
            half: Does a part of it.
            grows: Whether it needs room on the disk.
        """
        self.count += 1
        if self.count == self.at:
            # a signal and a lack of memory come before or after a write, never within it
            if self.failure in ("ENOSPC", "EIO", "kill -9"):
                half()
            self._spring()
        elif self.failure == "ENOSPC" and 0 < self.at < self.count and grows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _spring(self) -> None:
        if self.failure == "kill -9":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.failure == "KeyboardInterrupt":
            signal.raise_signal(signal.SIGINT)
        elif self.failure == "MemoryError":
            raise MemoryError
        else:
            number = getattr(errno, self.failure)
            raise OSError(number, os.strerror(number))

    def set(self) -> None:
        """Put the trap into this process."""
        for name in ("replace", "rename", "mkdir"):
            setattr(os, name, self._watching(getattr(os, name)))
        for name in ("unlink", "rmdir", "fsync"):
            setattr(os, name, self._watching(getattr(os, name), grows=name == "fsync"))
        os.pwrite = self._writing(os.pwrite)
        opened, made = io.open, os.open

        def watch_open(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            writes = any(letter in mode for letter in "wax+")
            if writes and self.concerns(file):
                if not isinstance(file, int):
                    self.step()
                return _Watched(opened(file, mode, *rest, **more), self)
            return opened(file, mode, *rest, **more)

        def watch_make(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            if flags & os.O_CREAT and self.concerns(path):
                self.step()
            return made(path, flags, *rest, **more)

        io.open, os.open = watch_open, watch_make
        import builtins

        builtins.open = watch_open

    def _watching(self, function: Callable[..., Any], grows: bool = True) -> Callable[..., Any]:
        def watched(target: Any, *rest: Any, **more: Any) -> Any:
            if self.concerns(target) and not (function.__name__ == "mkdir" and Path(target).is_dir()):
                self.step(grows=grows)
            return function(target, *rest, **more)

        return watched

    def _writing(self, function: Callable[..., int]) -> Callable[..., int]:
        def watched(handle: int, data: Any, *rest: Any) -> int:
            if self.concerns(handle):
                self.step(lambda: function(handle, bytes(data)[: len(data) // 2], *rest) and None)
            return function(handle, data, *rest)

        return watched

    def tell(self) -> None:
        """Write down how many operations there were."""
        with io.FileIO(str(self.report), "w") as file:
            file.write(str(self.count).encode())


class _Watched:
    """An open file that a trap watches."""

    def __init__(self, file: Any, trap: Trap) -> None:
        self._file, self._trap = file, trap

    def write(self, data: Any) -> int:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._trap.step(half)
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)


def crash(attacked: Attacked, tally: Tally, quick: bool) -> None:
    """Try every crash point of one command."""
    prepare()
    with workshop("crash") as base:
        said = base / "said"
        out = base / "out"
        warm(attacked.begin(base / "warm"), said)
        ended = run(attacked.begin(out), said)
        if ended.code:
            raise RuntimeError(f"{attacked.name} does not work at all: {ended.said}")
        expected = picture(out)
        points = _count(attacked, base)
        known: dict[str, tuple[Outcome, str]] = {}
        for number, failure in enumerate(FAILURES):
            for at in range(1 + (7 * number) % MANY if quick else 1, points + 1, MANY if quick else 1):
                tally.add(*_try(attacked, base, at, failure, expected, known))


def _count(attacked: Attacked, base: Path) -> int:
    _clean(base)
    run(_trapped(attacked, base, 0, ""), base / "said")
    return int((base / "count").read_text())


def _try(
    attacked: Attacked,
    base: Path,
    at: int,
    failure: str,
    expected: dict[str, str],
    known: dict[str, tuple[Outcome, str]],
) -> tuple[Outcome, str]:
    """Fail at one operation and go on.

    Args:
        attacked: The command.
        base: Where to run it.
        at: The operation.
        failure: How it fails.
        expected: The end of a command that nothing happened to.
        known: What became of every folder that was left behind; equal ones are continued once.
    """
    _clean(base)
    said = base / "said"
    where = f"{attacked.name}, {failure} at operation {at}"
    first = run(_trapped(attacked, base, at, failure), said)
    if first.hung:
        return Outcome.HANG, where
    if not first.clean:
        return Outcome.TRACEBACK, f"{where}: exit {first.code}: {(first.said.strip().splitlines() or ['no word'])[-1]}"
    left = left_behind(base / "out")
    if left not in known:
        last = run(attacked.resume(base / "out"), said)
        known[left] = judged(last, picture(base / "out"), expected)
    outcome, what = known[left]
    return outcome, f"{where}: {what}"


def trapped(body: Callable[[], None], folder: Path, at: int, failure: str, report: Path) -> Callable[[], None]:
    """A body with a trap in a folder.

    Args:
        body: What a child does.
        folder: Where operations count.
        at: The operation to fail at; 0 only counts.
        failure: How to fail.
        report: A file that learns how many operations there were.
    """

    def watched() -> None:
        trap = Trap(folder, at, failure, report)
        trap.set()
        try:
            body()
        finally:
            trap.tell()

    return watched


def _trapped(attacked: Attacked, base: Path, at: int, failure: str) -> Callable[[], None]:
    return trapped(attacked.begin(base / "out"), base / "out", at, failure, base / "count")


def _clean(base: Path) -> None:
    shutil.rmtree(base / "out", ignore_errors=True)
    for path in base.glob(".out*"):
        path.unlink()


for _attacked in COMMANDS:

    def _make(tally: Tally, quick: bool, attacked: Attacked = _attacked) -> None:
        crash(attacked, tally, quick)

    attack(f"crash points: {_attacked.name}", "crash points", minutes=MINUTES.get(_attacked.name, 5))(_make)
