"""Pool: worker processes that do whole jobs, such as a run or a trial, one at a time and on one thread each.

Jobs and answers go over pipes as short JSON. A process that dies or gets stuck is replaced, and its job is given to the
next; whoever does a job must be able to go on with what is there.
"""

from __future__ import annotations

import json
import logging
import multiprocessing as mp
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, cast

from fedapm.core.messages import ROOT
from fedapm.errors import FedapmError, Interrupted
from fedapm.simulation.loop import uninterrupted
from fedapm.simulation.workers import StuckWorkers, WorkerDied, WorkerProcess, listen

logger = logging.getLogger(__name__)
TRIES = 3
"""How often a job is started again whose process dies."""
LAST_WORDS = 30.0
"""Seconds a worker has to save what it is doing before it is killed."""


class Job(Protocol):
    """Something for a worker to do."""

    @property
    def name(self) -> str:
        """What to call it in messages; no two jobs have the same name."""

    def message(self) -> Mapping[str, Any]:
        """What the worker is told."""


J = TypeVar("J", bound=Job)


class Parent:
    """The parent as a worker sees it.

    Args:
        connection: The worker's end of the pipe.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.gone = False
        self._lock = threading.Lock()

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send something and wait for the answer; None where nobody is there any more."""
        try:
            self.send(message)
            return self.receive()
        except (EOFError, OSError):
            self.gone = True
            return None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send something that needs no answer."""
        with self._lock:
            self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any]:
        """The next message; waits for it."""
        return cast(dict[str, Any], json.loads(self.connection.recv_bytes()))


class _Forward(logging.Handler):
    """Sends what is logged to the parent, which has the screen."""

    def __init__(self, parent: Parent) -> None:
        super().__init__()
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._parent.send({"log": [record.levelno, record.name, record.getMessage()]})


Work = Callable[[Mapping[str, Any], Parent], Mapping[str, Any]]
"""Does a job: takes its message and the parent, returns what came out."""


def serve(connection: Connection, work: Work) -> None:
    """Do jobs until the parent hangs up: the life of a worker.

    What is wrong with a job is answered as ``refused``, what is wrong with the program as ``failed``. What is logged
    goes to the parent as ``log``.

    Args:
        connection: The pipe to the parent.
        work: What does a job.
    """
    if hasattr(os, "setpgid"):
        # Ctrl-C is for the parent, which then ends its workers in order
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    parent = Parent(connection)
    messages = logging.getLogger(ROOT)
    messages.handlers, messages.propagate = [_Forward(parent)], False
    try:
        listen()
        while True:
            parent.send(_result(work, parent))
    except (KeyboardInterrupt, Interrupted, EOFError, OSError):
        os._exit(0)


def _result(work: Work, parent: Parent) -> Mapping[str, Any]:
    job = parent.receive()
    try:
        result = work(job, parent)
    except Interrupted:
        raise
    except FedapmError as error:
        return {"refused": str(error)}
    except OSError as error:
        return {"refused": f"{error.filename or 'a file'}: {error.strerror or error}."}
    except Exception:
        return {"failed": traceback.format_exc()}
    if parent.gone:
        raise EOFError
    return result


def _end_with_parent() -> None:
    """End when the parent does, however it ends."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Pool(Generic[J]):
    """Keeps workers busy and ends them. A context manager, entered before any thread is started.

    Args:
        life: What a worker does: a function of the pipe's other end and of the arguments, which calls :func:`serve`.
        arguments: What every worker is given.
        count: How many workers there are.
        patience: Seconds without any processor time after which a worker counts as stuck.
    """

    def __init__(self, life: Callable[..., None], arguments: Sequence[Any], count: int, patience: float) -> None:
        self.life, self.arguments, self.count = life, arguments, count
        self._workers: list[WorkerProcess] = []
        self._jobs: dict[WorkerProcess, J] = {}
        self._deaths: Counter[str] = Counter()
        self._stuck = StuckWorkers(patience)

    def __enter__(self) -> Pool[J]:
        try:
            for _ in range(self.count):
                self._workers.append(self._fork())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(
        self, deal: Callable[[], J | None], handle: Callable[[J, dict[str, Any]], Mapping[str, Any] | None]
    ) -> None:
        """Have jobs done until there are none.

        Args:
            deal: Gives the next job; None where there is none at the moment.
            handle: Takes what a worker says about its job. It returns the answer, or None where the job is over.

        Raises:
            FedapmError: Where a job is refused, or its process dies again and again.
        """
        with uninterrupted():
            self._assign(deal)
        while self._jobs:
            ready = {*wait([worker.connection for worker in self._jobs], self._stuck.interval)}
            for worker in self._stuck.among(self._jobs):
                # its end is noticed as that of any process that dies
                logger.warning(
                    "the process of %s has not computed for %g s and is replaced.",
                    self._jobs[worker].name,
                    self._stuck.patience,
                )
                worker.process.kill()
            # Ctrl-C waits until what was received is recorded
            with uninterrupted():
                for worker in [w for w in self._jobs if w.connection in ready]:
                    try:
                        self._hear(worker, handle)
                    except WorkerDied:
                        self._replace(worker)
                self._assign(deal)

    def _hear(self, worker: WorkerProcess, handle: Callable[[J, dict[str, Any]], Mapping[str, Any] | None]) -> None:
        job, message = self._jobs[worker], worker.receive()
        if "log" in message:
            level, name, text = message["log"]
            logging.getLogger(name).log(level, "%s: %s", job.name, text)
            return
        if "refused" in message:
            raise FedapmError(f"{job.name}: {message['refused']}")
        if "failed" in message:
            raise RuntimeError(f"{job.name} failed:\n{message['failed']}")
        answer = handle(job, message)
        if answer is not None:
            worker.send(answer)
        else:
            del self._jobs[worker]

    def _assign(self, deal: Callable[[], J | None]) -> None:
        """Give every idle worker a job."""
        for worker in [w for w in self._workers if w not in self._jobs]:
            job = deal()
            if job is None:
                return
            self._start(worker, job)

    def _start(self, worker: WorkerProcess, job: J) -> None:
        self._jobs[worker] = job
        self._stuck.begin(worker)
        try:
            worker.send(job.message())
        except WorkerDied:
            self._replace(worker)

    def _fork(self) -> WorkerProcess:
        return WorkerProcess(self.life, self.arguments, self._workers)

    def _replace(self, worker: WorkerProcess) -> None:
        """Replace a process that died and give its job to the next, a limited number of times."""
        job = self._jobs.pop(worker)
        self._deaths[job.name] += 1
        self._workers.remove(worker)
        worker.interrupt()
        worker.end(0)
        if self._deaths[job.name] >= TRIES:
            raise FedapmError(f"the process of {job.name} died {TRIES} times; if memory is short, use fewer --workers.")
        other = self._fork()
        self._workers.append(other)
        self._start(other, job)

    def _stop(self) -> None:
        """End all workers, each after it has saved what it was doing."""
        workers, self._workers = self._workers, []
        try:
            for worker in workers:
                worker.interrupt()
            for worker in workers:
                worker.end(LAST_WORDS)
        finally:
            for worker in workers:
                worker.end(0)
