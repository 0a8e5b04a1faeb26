"""Worker processes: they have the parent's data without a copy and are asked things over a pipe, in short JSON."""

from __future__ import annotations

import gc
import json
import multiprocessing as mp
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

import torch

PATIENCE = 300.0
"""Seconds without any processor time after which a worker counts as stuck, where nothing else is said."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a process in order."""


class WorkerDied(Exception):
    """The worker is gone."""


class StuckWorkers:
    """Notices workers that are alive but no longer compute: stopped, or waiting for something that never comes.

    A worker that computes uses its processor, however long it takes. One that has used none for a while is stuck.

    Args:
        patience: Seconds without any processor time after which a worker counts as stuck.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.interval = min(max(patience / 4, 0.05), 15.0)
        """Seconds between two looks."""
        self._looked = time.monotonic()
        self._seen: dict[int | None, tuple[float, float]] = {}

    def begin(self, worker: WorkerProcess) -> None:
        """A worker has been given something to do."""
        self._seen.pop(worker.process.pid, None)

    def among(self, workers: Iterable[WorkerProcess]) -> list[WorkerProcess]:
        """Those of the busy workers that are stuck; nobody is looked at more often than need be."""
        now = time.monotonic()
        if now - self._looked < self.interval:
            return []
        if now - self._looked > 3 * self.interval + 1:
            # this process itself was stopped, and its workers with it
            self._seen.clear()
        self._looked = now
        stuck = []
        for worker in workers:
            spent = _processor_seconds(worker.process.pid)
            if spent is None:
                continue
            before, since = self._seen.get(worker.process.pid, (-1.0, now))
            since = now if spent > before else since
            self._seen[worker.process.pid] = spent, since
            if now - since >= self.patience:
                stuck.append(worker)
        return stuck


def processor_seconds() -> float:
    """How long this process and its workers have computed so far; of workers that run, as far as the system tells."""
    ended = os.times()
    running = (_processor_seconds(worker.process.pid) for worker in _workers if worker.owner == os.getpid())
    return time.process_time() + ended.children_user + ended.children_system + sum(filter(None, running))


def _processor_seconds(pid: int | None) -> float | None:
    """How long a process has computed so far; None where the system does not tell."""
    try:
        # the name of the program, in parentheses, may hold anything
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


_workers: WeakSet[WorkerProcess] = WeakSet()
"""Those of this process, and in a forked one also those of the process it comes from."""


class WorkerProcess:
    """A process on one thread that ends when its parent closes the pipe.

    It is forked where the system can, so that what it is given is not copied.

    Args:
        serve: What it does: a function of the pipe's other end and of the arguments.
        arguments: What it is given.
        siblings: The parent's other workers, whose pipes the new process must not keep open.
    """

    def __init__(
        self, serve: Callable[..., None], arguments: Sequence[Any], siblings: Sequence[WorkerProcess] = ()
    ) -> None:
        forks = "fork" in mp.get_all_start_methods()
        context = cast(Any, mp.get_context("fork" if forks else "spawn"))
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        inherited = [*(worker.connection for worker in siblings), self.connection] if forks else []
        self.process = context.Process(target=_main, args=(serve, theirs, inherited, arguments), daemon=True)
        self.owner = os.getpid()
        _workers.add(self)
        # a signal that comes before the process has answers of its own waits for them
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with warnings.catch_warnings():
                # newer Pythons warn of forking where there are threads; the child uses none of theirs
                warnings.simplefilter("ignore", DeprecationWarning)
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Ask something, or answer a question."""
        try:
            self.connection.send_bytes(json.dumps(message).encode())
        except OSError:
            raise WorkerDied from None

    def receive(self) -> dict[str, Any]:
        """The next message; waits for it."""
        try:
            return cast(dict[str, Any], json.loads(self.connection.recv_bytes()))
        except (EOFError, OSError):
            raise WorkerDied from None

    def interrupt(self) -> None:
        """Let it save what it is doing and end."""
        self.connection.close()
        with suppress(ProcessLookupError, OSError):
            if self.process.pid is not None and self.process.is_alive():
                os.kill(self.process.pid, signal.SIGINT)

    def end(self, patience: float = 0.0) -> None:
        """Wait so many seconds until it has ended, then kill it."""
        self.connection.close()
        try:
            if patience:
                self.process.join(patience)
        finally:
            if self.process.is_alive():
                self.process.kill()
            self.process.join()

    def exit_reason(self) -> str:
        """How the process ended, in words."""
        self.process.join(1)
        code = self.process.exitcode
        if code is None:
            return "hung up"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _main(
    serve: Callable[..., None], connection: Connection, inherited: Sequence[Connection], arguments: Sequence[Any]
) -> None:
    # a worker must not keep its parent's ends open, or nobody would notice when one of the two is gone
    for other in inherited:
        other.close()
    # what the parent left behind stays its own: looking through it would copy its memory, and freeing it may wait for
    # threads that a fork does not have
    gc.freeze()
    torch.set_num_threads(1)
    serve(connection, *arguments)


def end_only_by_parent() -> None:
    """Pass over Ctrl-C and a hangup, and end at once where the system asks for it: the parent saves what there is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    listen()


def listen() -> None:
    """Take signals from now on: a worker calls this when it has its answers to them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
