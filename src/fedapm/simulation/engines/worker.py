"""Worker: a process that runs one client at a time for another.

It is forked, so it has the problem and the data without a copy. What a client needs and what it results in goes through
shared memory; the pipe carries short JSON messages.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.messages import collect_messages
from fedapm.errors import FedapmError
from fedapm.simulation.engines.asking import answered, result_of, state_groups, state_of
from fedapm.simulation.engines.base import ClientResult
from fedapm.simulation.engines.shared_memory import OutOfSpace, SharedMemory
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
        note = self.inbox.write(state_groups(client_state))
        self.client = client
        self.send({**message, "client": client, "kept": note})

    def result(self, answer: Mapping[str, Any]) -> ClientResult:
        """A client's finished round."""
        return result_of(answer["client"], answer, self.outbox.read(answer["update"]))

    def client_state(self, answer: Mapping[str, Any]) -> ClientState:
        """A client's state after a personal phase."""
        return state_of(self.outbox.read(answer["kept"]))


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
                state = state_of(inbox.read(asked["kept"]))
                answer = answered(problem, algorithm, asked, asked["client"], state, latest_broadcast[1], outbox.write)
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
