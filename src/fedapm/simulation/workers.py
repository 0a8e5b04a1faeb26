"""Worker processes: they have the parent's data without a copy and are asked things over a pipe, in short JSON."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, cast

import torch


class WorkerDied(Exception):
    """The worker is gone."""


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
        with warnings.catch_warnings():
            # newer Pythons warn of forking where there are threads; the child uses none of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
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
    torch.set_num_threads(1)
    serve(connection, *arguments)


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
