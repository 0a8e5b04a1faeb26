"""A process of its own that starts at once: a fork of this one, which has loaded everything already."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import psutil

from fedapm.cli import app as cli

PATIENCE = 420.0
"""Seconds for anything to happen; a busy machine takes its time."""


class Forked:
    """Runs a function in another process.

    Args:
        work: The function; with it ends the process.
        said: A file for what the process prints, of both kinds.
    """

    def __init__(self, work: Callable[[], object], said: Path) -> None:
        self.said = said
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # newer Pythons warn of forking where there are threads; the child uses none of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _live(work, said)

    def poll(self) -> int | None:
        """How it ended, as subprocess says it; None while it lives."""
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode

    def until(self, condition: Callable[[], object]) -> Forked:
        """Wait for something that must come before it ends."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert self.poll() is None, self.said.read_text()
            if time.monotonic() > end:
                self._show_where()
                self.end()
                raise TimeoutError(f"it never came: {self.said.read_text()}")
            time.sleep(0.005)
        return self

    def _show_where(self) -> None:
        """Have the process and those it started print where each of their threads is."""
        for process in [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]:
            process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)

    def end(self, how: int = signal.SIGKILL) -> int:
        """Send it a signal, wait until it has ended, and say how."""
        os.kill(self.pid, how)
        end = time.monotonic() + PATIENCE
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        return code


def _live(work: Callable[[], object], said: Path) -> None:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream in (1, 2):
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
        faulthandler.register(signal.SIGUSR1, file=2)
        # what other tests left may belong to threads that a fork has not
        gc.freeze()
        work()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def program(*arguments: object, said: Path) -> Forked:
    """The command line in a process of its own."""

    def work() -> None:
        sys.argv = ["fedapm", *map(str, arguments)]
        cli.main()

    return Forked(work, said)
