"""Worker processes that run whole trials, one at a time and on one thread each.

They are forked where the system can, so that they have the clients' data without a copy. The pipe carries short JSON
messages; only the parent opens the trials' database.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import torch

from fedapm.data.federation import Federation
from fedapm.errors import FedapmError, Interrupted
from fedapm.experiments.settings import Experiment
from fedapm.tuning.scorer import Scorer
from fedapm.tuning.trial import run_trial

PATIENCE = 30.0
"""Seconds a worker has to save its run before it is killed."""


class WorkerDied(Exception):
    """The worker process ended unexpectedly."""


class TrialWorker:
    """A process that runs trials.

    Args:
        clients: The clients' data.
        others: The connections of the workers there are, which a fork inherits and must close.
    """

    def __init__(self, clients: Federation, others: Sequence[Connection]) -> None:
        forks = "fork" in mp.get_all_start_methods()
        context = cast(Any, mp.get_context("fork" if forks else "spawn"))
        self.connection, theirs = context.Pipe()
        inherited = [*others, self.connection] if forks else []
        self.process = context.Process(target=_serve, args=(theirs, inherited, clients), daemon=True)
        with warnings.catch_warnings():
            # newer Pythons warn of forking where there are threads; the child uses none of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send it a trial, or whether to stop the one it runs."""
        try:
            self.connection.send_bytes(json.dumps(message).encode())
        except OSError:
            raise WorkerDied from None

    def receive(self) -> dict[str, Any]:
        """Wait for its next message."""
        try:
            return cast(dict[str, Any], json.loads(self.connection.recv_bytes()))
        except (EOFError, OSError):
            raise WorkerDied from None

    def ask_to_stop(self) -> None:
        """Let it save its run and end."""
        self.connection.close()
        with suppress(ProcessLookupError, OSError):
            if self.process.pid is not None and self.process.is_alive():
                os.kill(self.process.pid, signal.SIGINT)

    def end(self, patience: float) -> None:
        """Wait until it has ended, and kill it after some seconds."""
        try:
            self.process.join(patience)
        finally:
            if self.process.is_alive():
                self.process.kill()
                self.process.join()


def _serve(connection: Connection, inherited: Sequence[Connection], clients: Federation) -> None:
    # a worker must not keep its parent's ends open, or neither would notice when the other one ends
    for other in inherited:
        other.close()
    if hasattr(os, "setpgid"):
        # Ctrl-C is for the parent, which then ends its workers in order
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        while True:
            connection.send_bytes(json.dumps(_run_next(connection, clients)).encode())
    except (KeyboardInterrupt, Interrupted, EOFError, OSError):
        os._exit(0)


def _end_with_parent() -> None:
    """End when the parent does, however it ends."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_next(connection: Connection, clients: Federation) -> dict[str, Any]:
    """Wait for a trial and run it; the message about its end."""
    job = json.loads(connection.recv_bytes())
    runs = [(Experiment.from_tables(tables), Path(folder)) for tables, folder in job["runs"]]
    disconnected = False

    def should_stop(step: int, value: float) -> bool:
        nonlocal disconnected
        try:
            connection.send_bytes(json.dumps({"step": step, "value": value}).encode())
            return bool(json.loads(connection.recv_bytes())["stop"])
        except (EOFError, OSError):
            disconnected = True
            return True

    try:
        outcome = run_trial(runs, clients, Scorer(job["metric"], job["select"]), should_stop)
    except Interrupted:
        raise
    except FedapmError as error:
        return {"refused": str(error)}
    except OSError as error:
        return {"refused": f"{error.filename or 'a file'}: {error.strerror or error}."}
    except Exception:
        return {"failed": traceback.format_exc()}
    if disconnected:
        raise EOFError
    return {"status": outcome.status, "scores": outcome.scores}
