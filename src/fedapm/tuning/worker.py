"""Worker processes that run whole trials, one at a time and on one thread each.

Only the parent opens the trials' database.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError, Interrupted
from fedapm.experiments.settings import Experiment
from fedapm.simulation.workers import WorkerProcess
from fedapm.tuning.scorer import Scorer
from fedapm.tuning.trial import Clients, run_trial

PATIENCE = 30.0
"""Seconds a worker has to save its run before it is killed."""


def trial_worker(clients: Clients, siblings: Sequence[WorkerProcess]) -> WorkerProcess:
    """A process that runs trials.

    Args:
        clients: The clients' data.
        siblings: The workers there are.
    """
    return WorkerProcess(_serve, (clients,), siblings)


def _serve(connection: Connection, clients: Clients) -> None:
    if hasattr(os, "setpgid"):
        # Ctrl-C is for the parent, which then ends its workers in order
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
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


def _run_next(connection: Connection, clients: Clients) -> dict[str, Any]:
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
