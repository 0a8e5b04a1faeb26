"""Worker: a process that runs one client at a time for another.

It is forked, so it has the problem and the data without a copy. What a client needs and what it results in goes through
shared memory; the pipe carries short JSON messages.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any, cast

from fedapm.core.algorithm import Algorithm, ClientUpdate, State, Upload
from fedapm.core.messages import collect_messages
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.simulation.engines.base import ClientResult
from fedapm.simulation.engines.sequential import evaluate_client, personalize_client, train_client
from fedapm.simulation.engines.shared_memory import Fields, Note, OutOfSpace, SharedMemory
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import ClientState
from fedapm.simulation.workers import WorkerProcess, end_only_by_parent

SLACK = 1 << 16


class ClientWorker(WorkerProcess):
    """A process that runs one client at a time, and the memory shared with it."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        broadcast: SharedMemory,
        size: int,
        siblings: Sequence[ClientWorker],
    ) -> None:
        self.inbox, self.outbox = SharedMemory(size), SharedMemory(size)
        self.client: int | None = None
        super().__init__(_serve, (problem, algorithm, broadcast, self.inbox, self.outbox), siblings)

    @property
    def running(self) -> int:
        """The client it has been given."""
        assert self.client is not None
        return self.client

    def ask(self, client: int, client_state: ClientState, message: Mapping[str, Any]) -> None:
        """Give the worker a client to run."""
        note = self.inbox.write(_groups(client_state))
        self.client = client
        self.send({**message, "client": client, "kept": note})

    def result(self, answer: Mapping[str, Any]) -> ClientResult:
        """A client's finished round."""
        groups = self.outbox.read(answer["update"])
        sums = cast(dict[str, Vec], groups["sums"])
        more = groups["more"]
        upload = Upload(sums, answer["weight"], answer["unit"], cast(Vec | None, more.get("wire")))
        update = ClientUpdate(upload, State(**groups["state"]), cast(Vec, more["u"]))
        log = [SolveStats(**stats) for stats in answer["log"]]
        return ClientResult(answer["client"], update, cast(Vec, more["buffers"]), log)

    def client_state(self, answer: Mapping[str, Any]) -> ClientState:
        """A client's state after a personal phase."""
        return _client_state(self.outbox, answer["kept"])


def _serve(
    connection: Connection,
    problem: Problem,
    algorithm: Algorithm,
    broadcast: SharedMemory,
    inbox: SharedMemory,
    outbox: SharedMemory,
) -> None:
    # all of these are for the parent, which ends its workers itself
    end_only_by_parent()
    latest_broadcast: tuple[str, State] | None = None
    while True:
        try:
            asked = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        try:
            key = asked["broadcast"]["key"]
            if latest_broadcast is None or latest_broadcast[0] != key:
                latest_broadcast = key, State(**broadcast.read(asked["broadcast"]["note"])["down"])
            with collect_messages() as messages:
                answer = _answer(
                    problem, algorithm, asked, _client_state(inbox, asked["kept"]), latest_broadcast[1], outbox
                )
            answer["messages"] = messages
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


def _groups(client_state: ClientState) -> dict[str, Fields]:
    return {"state": client_state.state, "kept": {"buffers": client_state.buffers}}


def _client_state(memory: SharedMemory, note: Note) -> ClientState:
    groups = memory.read(note)
    return ClientState(State(**groups["state"]), cast(Vec, groups["kept"]["buffers"]))


def _answer(
    problem: Problem,
    algorithm: Algorithm,
    asked: Mapping[str, Any],
    state: ClientState,
    broadcast: State,
    outbox: SharedMemory,
) -> dict[str, Any]:
    client = asked["client"]
    if asked["do"] == "evaluate":
        return {"scores": evaluate_client(problem, algorithm, client, state, broadcast, asked["view"])}
    if asked["do"] == "personalize":
        new = personalize_client(problem, algorithm, client, state, broadcast, asked["round"], asked["epochs"])
        return {"kept": outbox.write(_groups(new))}
    result = train_client(problem, algorithm, client, state, broadcast, asked["round"])
    upload = result.update.upload
    wire = {} if upload.wire is None else {"wire": upload.wire}
    groups: dict[str, Fields] = {
        "sums": upload.sums,
        "state": result.update.state,
        "more": {"u": result.update.u, "buffers": result.buffers, **wire},
    }
    return {
        "update": outbox.write(groups),
        "weight": upload.weight,
        "unit": upload.unit,
        "log": [asdict(stats) for stats in result.log],
    }
