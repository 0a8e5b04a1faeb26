"""Worker: a process that runs one client at a time for another.

It is forked, so it has the problem and the data without a copy. What a client needs and what it results in goes through
shared memory; the pipe carries short JSON messages.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any, cast

import torch

from fedapm.core.algorithm import Algorithm, ClientUpdate, State, Upload
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.simulation.engines.base import ClientResult
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.shared_memory import Fields, Note, OutOfSpace, SharedMemory
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import ClientState, MemoryStore

SLACK = 1 << 16


class WorkerDied(Exception):
    """The worker is gone."""


class ClientWorker:
    """A process and the memory shared with it."""

    def __init__(
        self, problem: Problem, algorithm: Algorithm, broadcast: SharedMemory, size: int, others: Sequence[Connection]
    ) -> None:
        self.inbox, self.outbox = SharedMemory(size), SharedMemory(size)
        self.client: int | None = None
        context = mp.get_context("fork")
        self.connection, theirs = context.Pipe()
        inherited = [*others, self.connection]
        self.process = context.Process(
            target=_serve,
            args=(problem, algorithm, broadcast, self.inbox, self.outbox, theirs, inherited),
            daemon=True,
        )
        with warnings.catch_warnings():
            # newer Pythons warn of forking where there are threads; the child runs nothing but torch on one thread
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    @property
    def running(self) -> int:
        """The client it has been given."""
        assert self.client is not None
        return self.client

    def ask(self, client: int, kept: ClientState, message: Mapping[str, Any]) -> None:
        """Give the worker a client to run."""
        note = self.inbox.write({"state": kept.state, "kept": {"buffers": kept.buffers}})
        self.client = client
        try:
            self.connection.send_bytes(json.dumps({**message, "client": client, "kept": note}).encode())
        except OSError:
            raise WorkerDied from None

    def answer(self) -> dict[str, Any]:
        """What the worker says; waits until it does."""
        try:
            return cast(dict[str, Any], json.loads(self.connection.recv_bytes()))
        except (EOFError, OSError):
            raise WorkerDied from None

    def done(self, answer: Mapping[str, Any]) -> ClientResult:
        """A finished client."""
        found = self.outbox.read(answer["reply"])
        sums = cast(dict[str, Vec], found["sums"])
        more = found["more"]
        reply = ClientUpdate(Upload(sums, answer["weight"]), State(**found["state"]), cast(Vec, more["u"]))
        log = [SolveStats(**solved) for solved in answer["log"]]
        return ClientResult(answer["client"], reply, cast(Vec, more["buffers"]), log)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.connection.close()
        self.process.kill()
        self.process.join()

    def fate(self) -> str:
        """How the process ended, in words."""
        self.process.join(1)
        code = self.process.exitcode
        if code is None:
            return "hung up"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _serve(
    problem: Problem,
    algorithm: Algorithm,
    broadcast: SharedMemory,
    inbox: SharedMemory,
    outbox: SharedMemory,
    connection: Connection,
    inherited: Sequence[Connection],
) -> None:
    # a worker must not keep its parent's ends open, or nobody would notice when one of the two is gone
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    engine = SequentialEngine(problem, algorithm)
    actions: dict[str, Callable[[dict[str, Any], State, MemoryStore], dict[str, Any]]] = {
        "train": lambda asked, broadcast, store: _train(engine, outbox, asked, broadcast, store),
        "evaluate": lambda asked, broadcast, store: {
            "scores": next(iter(engine.evaluate([asked["client"]], broadcast, store, asked["view"])))
        },
    }
    heard: tuple[str, State] | None = None
    while True:
        try:
            asked = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        try:
            key = asked["broadcast"]["key"]
            if heard is None or heard[0] != key:
                heard = key, State(**broadcast.read(asked["broadcast"]["note"])["down"])
            store = MemoryStore(_refuse)
            store.commit({asked["client"]: _kept(inbox, asked["kept"])})
            answer = actions[asked["do"]](asked, heard[1], store)
            answer["remarks"] = list(engine.remarks)
        except OutOfSpace as full:
            answer = {"needed": full.needed}
        except FedapmError as error:
            answer = {"refused": str(error)}
        except Exception:
            answer = {"failed": traceback.format_exc()}
        try:
            connection.send_bytes(json.dumps({**answer, "client": asked["client"]}).encode())
        except OSError:
            os._exit(0)


def _refuse(client: int) -> ClientState:
    raise KeyError(client)


def _kept(inbox: SharedMemory, note: Note) -> ClientState:
    found = inbox.read(note)
    return ClientState(State(**found["state"]), cast(Vec, found["kept"]["buffers"]))


def _train(
    engine: SequentialEngine, outbox: SharedMemory, asked: Mapping[str, Any], broadcast: State, store: MemoryStore
) -> dict[str, Any]:
    (done,) = engine.train([asked["client"]], broadcast, store, asked["round"])
    groups: dict[str, Fields] = {
        "sums": done.reply.upload.sums,
        "state": done.reply.state,
        "more": {"u": done.reply.u, "buffers": done.buffers},
    }
    return {
        "reply": outbox.write(groups),
        "weight": done.reply.upload.weight,
        "log": [asdict(solved) for solved in done.log],
    }
