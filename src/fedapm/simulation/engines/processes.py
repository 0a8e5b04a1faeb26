"""Processes: the clients of a round dealt out to worker processes of one thread each."""

from __future__ import annotations

import logging
import multiprocessing as mp
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any, TypeVar

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.messages import OnceLogger
from fedapm.core.metrics import Score
from fedapm.errors import FedapmError
from fedapm.simulation.engines.base import ClientResults, LocalEngine
from fedapm.simulation.engines.shared_memory import OutOfSpace, SharedMemory
from fedapm.simulation.engines.worker import SLACK, ClientWorker
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import Store
from fedapm.simulation.workers import PATIENCE, StuckWorkers, WorkerDied, cores

logger = logging.getLogger(__name__)
T = TypeVar("T")
TRIES = 3


class ProcessEngine(LocalEngine):
    """Runs clients in worker processes. Results are those of one process, to the bit."""

    name = "processes"

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        workers: int | None = None,
        store: Store | None = None,
        patience: float = PATIENCE,
    ) -> None:
        if (reason := unable(problem)) is not None:
            raise FedapmError(f"worker processes cannot be used, because {reason}; set engine.engine to sequential.")
        super().__init__(problem, algorithm, store)
        self.count = workers or cores()
        self._stuck = StuckWorkers(patience)
        self._log = OnceLogger(logger)
        self._size = 0
        self._workers: list[ClientWorker] = []
        self._broadcast: SharedMemory | None = None
        self._spoken = 0

    def _train(self, round: int, selected: Sequence[int], broadcast: State) -> ClientResults:
        results = self._all(selected, broadcast, {"do": "train", "round": round}, ClientWorker.result)
        return ClientResults(self.store, results, self.algorithm)

    def evaluate(self, broadcast: State, view: str) -> list[dict[str, Score]]:
        """The scores of the evaluated clients, each on its own data."""

        def scores(_: ClientWorker, answer: Mapping[str, Any]) -> dict[str, Score]:
            row: dict[str, Score] = answer["scores"]
            return row

        return self._all(self.problem.evaluated, broadcast, {"do": "evaluate", "view": view}, scores)

    def _personalize(self, round: int, clients: Sequence[int], broadcast: State, epochs: int, into: Store) -> None:
        message = {"do": "personalize", "round": round, "epochs": epochs}
        states = self._all(clients, broadcast, message, ClientWorker.client_state)
        into.commit(dict(zip(clients, states, strict=True)))

    def close(self) -> None:
        """End the workers."""
        while self._workers:
            self._workers.pop().end()

    def _all(
        self,
        clients: Sequence[int],
        broadcast: State,
        message: Mapping[str, Any],
        result: Callable[[ClientWorker, Mapping[str, Any]], T],
    ) -> list[T]:
        """Every client's result, in the order asked for, whichever worker had it and when."""
        # evaluations are of the models, all other work begins at what clients keep
        states = self.models if message["do"] == "evaluate" else self.store
        # the largest first, so that no worker is left with a large one at the end
        waiting = sorted(clients, key=self.problem.federation.known_size)
        results: dict[int, T] = {}
        deaths: Counter[int] = Counter()
        request = {**message, "broadcast": self._tell(broadcast)}
        try:
            self._start(min(self.count, len(waiting)), clients)
            idle = list(self._workers)
            while len(results) < len(clients):
                while idle and waiting:
                    worker, client = idle.pop(), waiting.pop()
                    try:
                        worker.ask(client, states.get(client), request)
                        self._stuck.begin(worker)
                    except WorkerDied:
                        waiting.append(client)
                        idle.append(self._replace(worker, client, deaths))
                    except OutOfSpace as full:
                        waiting.append(client)
                        idle.append(self._grown(worker, full.needed))
                busy = {w.connection: w for w in self._workers if w.client is not None}
                for stuck in self._stuck.among(busy.values()):
                    self._log.warning(f"a worker process has not computed for {self._stuck.patience:g} s and is ended.")
                    stuck.process.kill()
                for connection in wait(list(busy), self._stuck.interval):
                    worker = busy[connection]  # type: ignore[index]
                    client = worker.running
                    try:
                        answer = worker.receive()
                    except WorkerDied:
                        waiting.append(client)
                        idle.append(self._replace(worker, client, deaths))
                        continue
                    worker.client = None
                    if "needed" in answer:
                        waiting.append(client)
                        idle.append(self._grown(worker, answer["needed"]))
                        continue
                    self._raise(answer)
                    results[client] = result(worker, answer)
                    self._log.info(*answer["messages"])
                    idle.append(worker)
        except BaseException:
            # workers in the middle of a client would answer the next question with this one's result
            self.close()
            raise
        return [results[client] for client in clients]

    def _tell(self, broadcast: State) -> dict[str, Any]:
        needed = broadcast.nbytes + SLACK
        if self._broadcast is None or self._broadcast.size < needed:
            self.close()
            self._broadcast = SharedMemory(2 * needed)
        self._spoken += 1
        return {"key": self._spoken, "note": self._broadcast.write({"down": broadcast})}

    def _start(self, count: int, clients: Sequence[int]) -> None:
        if not self._size:
            client_state = self.store.get(clients[0])
            self._size = 4 * (client_state.state.nbytes + client_state.buffers.nbytes + self.problem.u0.nbytes) + SLACK
        if not self._workers:
            self.problem.keep_features()
        while len(self._workers) < count:
            self._workers.append(self._fork())

    def _fork(self) -> ClientWorker:
        assert self._broadcast is not None
        return ClientWorker(self.problem, self.algorithm, self._broadcast, self._size, self._workers)

    def _grown(self, worker: ClientWorker, needed: int) -> ClientWorker:
        self._size = max(self._size, 2 * needed)
        return self._again(worker)

    def _again(self, worker: ClientWorker) -> ClientWorker:
        self._workers.remove(worker)
        worker.end()
        self._workers.append(self._fork())
        return self._workers[-1]

    def _replace(self, worker: ClientWorker, client: int, deaths: Counter[int]) -> ClientWorker:
        """A worker that died is replaced and its client run again, but not for ever."""
        deaths[client] += 1
        fate, name = worker.exit_reason(), self.problem.federation.ids[client]
        if deaths[client] >= TRIES:
            raise FedapmError(
                f"the process that ran client {name} {fate} {TRIES} times in a row; if memory is short, use fewer "
                "workers (engine.workers)."
            )
        self._log.warning(f"a worker process {fate} and was replaced; client {name} was run again.")
        return self._again(worker)

    def _raise(self, answer: Mapping[str, Any]) -> None:
        if "refused" in answer:
            raise FedapmError(answer["refused"])
        if "failed" in answer:
            raise RuntimeError(f"a worker process failed:\n{answer['failed']}")


def unable(problem: Problem) -> str | None:
    """Why worker processes cannot be used here, if they cannot."""
    if "fork" not in mp.get_all_start_methods():
        return "this system cannot fork"
    if problem.device.type != "cpu":
        return f"the device {problem.device} cannot be shared with forked processes"
    return None
