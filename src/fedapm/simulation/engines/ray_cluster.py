"""Ray: the clients of a round dealt out to the workers of a Ray cluster, on this machine or on many.

Clients' states stay in the store of this process. They go to workers and come back as safetensors; the clients' data,
the network and the method go to each worker once, as Ray sends things: pickled. So whoever can reach the cluster has to
be trusted.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from fedapm.core.algorithm import Algorithm, State, Value
from fedapm.core.extras import require
from fedapm.core.imports import own_modules
from fedapm.core.messages import OnceLogger, collect_messages, plain_line
from fedapm.core.metrics import Score
from fedapm.errors import FedapmError
from fedapm.simulation.engines.asking import Groups, answered, result_of, state_groups, state_of
from fedapm.simulation.engines.base import ClientResult, ClientResults, LocalEngine
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import Store, flatten, restore
from fedapm.simulation.workers import PATIENCE, cores

logger = logging.getLogger(__name__)
T = TypeVar("T")
TRIES = 3
"""How often a part of a round is given to another worker when its worker dies."""
PARTS = 4
"""Parts of a round for each worker: few enough to cost little, enough that nobody waits long for the last one."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_agent_register_timeout_ms": "120000",
}
"""What a cluster that is started here has, unless the environment says otherwise: nothing is reported to anyone, the
visible devices stay visible, and a busy machine has time to start."""

_IDLE: list[Any] = []
"""Workers of this process that wait for its next run: to start one takes seconds."""


class RayEngine(LocalEngine):
    """Runs clients on a Ray cluster. Results are those of one process, to the bit, where the processors are alike.

    Args:
        problem: What is learnt.
        algorithm: The method.
        workers: How many workers to use; as many as the cluster has processors free if not given.
        address: The cluster, such as "auto" or "ray://head:10001"; one is started on this machine if not given.
        patience: Seconds to wait for the first worker.
        store: Where clients' states are kept.
    """

    name = "ray"

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        workers: int | None = None,
        address: str | None = None,
        patience: float = PATIENCE,
        store: Store | None = None,
    ) -> None:
        if problem.device.type != "cpu":
            raise FedapmError(f"the Ray engine computes on processors, not on {problem.device}; use another engine.")
        super().__init__(problem, algorithm, store)
        self._ray = _connect(workers, address)
        self.count = _count(self._ray, workers)
        self._patience = patience
        self._log = OnceLogger(logger)
        self._kit: Any = None
        self._workers: list[Any] = []

    def _train(self, round: int, selected: Sequence[int], broadcast: State) -> ClientResults:
        results = self._all(selected, broadcast, {"do": "train", "round": round}, _result)
        return ClientResults(self.store, results, self.algorithm)

    def evaluate(self, broadcast: State, view: str) -> list[dict[str, Score]]:
        """The scores of the evaluated clients, each on its own data."""

        def scores(_: int, answer: Mapping[str, Any]) -> dict[str, Score]:
            row: dict[str, Score] = answer["scores"]
            return row

        return self._all(self.problem.evaluated, broadcast, {"do": "evaluate", "view": view}, scores)

    def _personalize(self, round: int, clients: Sequence[int], broadcast: State, epochs: int, into: Store) -> None:
        message = {"do": "personalize", "round": round, "epochs": epochs}
        states = self._all(clients, broadcast, message, lambda _, answer: state_of(unpack(answer["kept"])))
        into.commit(dict(zip(clients, states, strict=True)))

    def close(self) -> None:
        """Leave the workers to the next run. A cluster that was started here ends with this process."""
        _IDLE.extend(self._workers)
        self._workers, self._kit = [], None

    def _abandon(self) -> None:
        """End the workers, who would only compute what nobody takes."""
        for worker in self._workers:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(worker)
        self._workers, self._kit = [], None

    def _all(
        self,
        clients: Sequence[int],
        broadcast: State,
        message: Mapping[str, Any],
        result: Callable[[int, Mapping[str, Any]], T],
    ) -> list[T]:
        """Every client's result, in the order asked for, whichever worker had it and when."""
        states = self.models if message["do"] == "evaluate" else self.store
        waiting = self._parts(clients)
        sent = self._ray.put(pack({"down": broadcast}))
        results: dict[int, T] = {}
        deaths: Counter[int] = Counter()
        busy: dict[Any, _Part] = {}
        try:
            idle = self._start(min(self.count, len(waiting)))
            while len(results) < len(clients):
                while idle and waiting:
                    worker, part = idle.pop(), waiting.pop()
                    kept = [pack(state_groups(states.get(client))) for client in part]
                    busy[worker.work.remote(message, part, kept, sent)] = _Part(worker, part)
                (done,), _ = self._ray.wait(list(busy), num_returns=1)
                part_ = busy.pop(done)
                try:
                    answers = self._ray.get(done)
                except self._ray.exceptions.RayError as error:
                    waiting.append(part_.clients)
                    idle.append(self._replace(part_, error, deaths))
                    continue
                self._raise(answers)
                self._log.info(*answers["messages"])
                results |= {
                    client: result(client, answer)
                    for client, answer in zip(part_.clients, answers["clients"], strict=True)
                }
                idle.append(part_.worker)
        except BaseException:
            self._abandon()
            raise
        return [results[client] for client in clients]

    def _parts(self, clients: Sequence[int]) -> list[list[int]]:
        """The clients dealt out to parts of about the same size; the last part is the first to be taken."""
        count = min(PARTS * self.count, len(clients))
        ordered = sorted(clients, key=lambda client: -len(self.problem.federation[client].train))
        return [ordered[first::count] for first in reversed(range(count))]

    def _start(self, count: int) -> list[Any]:
        """Workers that know the problem: as many as asked for, or those that came in time."""
        if self._kit is None:
            self.problem.keep_features()
            self._kit = self._ray.put(_pickled(self._ray, self.problem, self.algorithm))
        wanted = count - len(self._workers)
        self._load([_IDLE.pop() for _ in range(min(wanted, len(_IDLE)))])
        self._load([self._new() for _ in range(count - len(self._workers))])
        if not self._workers:
            raise FedapmError(f"no worker of the Ray cluster was ready after {self._patience:g} s; is it busy?")
        if len(self._workers) < count:
            self.count = len(self._workers)
            self._log.warning(f"the Ray cluster had room for {self.count} workers only.")
        return list(self._workers)

    def _load(self, workers: Sequence[Any]) -> None:
        """Take workers on that get ready in time."""
        loading = {worker.load.remote(self._kit): worker for worker in workers}
        if not loading:
            return
        here, late = self._ray.wait(list(loading), num_returns=len(loading), timeout=self._patience)
        for reference in here:
            with suppress(self._ray.exceptions.RayActorError):  # it died while it was idle
                self._loaded(reference)
                self._workers.append(loading[reference])
        for reference in late:
            self._ray.kill(loading[reference])

    def _loaded(self, reference: Any) -> None:
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise FedapmError(f"a worker of the Ray cluster cannot read data or network: {_reason(error)}") from None

    def _new(self) -> Any:
        return self._ray.remote(num_cpus=1, max_restarts=0)(RayWorker).remote()

    def _replace(self, part: _Part, error: Exception, deaths: Counter[int]) -> Any:
        """A worker in the place of one that died; its part is done again, but not for ever."""
        first = part.clients[0]
        deaths[first] += 1
        if deaths[first] >= TRIES:
            raise FedapmError(
                f"the worker of client {self.problem.federation[first].id} was lost {TRIES} times in a row "
                f"({_reason(error)})"
            )
        self._log.warning("a worker of the Ray cluster was lost and replaced; its clients were run again.")
        self._workers.remove(part.worker)
        other = self._new()
        other.load.remote(self._kit)
        self._workers.append(other)
        return other

    def _raise(self, answers: Mapping[str, Any]) -> None:
        if "refused" in answers:
            raise FedapmError(answers["refused"])
        if "failed" in answers:
            raise RuntimeError(f"a worker of the Ray cluster failed:\n{answers['failed']}")


@dataclass(frozen=True)
class _Part:
    """Clients that a worker has been given."""

    worker: Any
    clients: list[int]


class RayWorker:
    """Runs clients in a process of the cluster, on one thread."""

    problem: Problem
    algorithm: Algorithm

    def load(self, kit: bytes) -> int:
        """Take what all clients have in common.

        Args:
            kit: The problem and the method, as :func:`_pickled` made them.

        Returns:
            The id of this process.
        """
        torch.set_num_threads(1)
        self.problem, self.algorithm = require("ray.cloudpickle", "ray", "--engine ray").loads(kit)
        return os.getpid()

    def work(self, asked: Mapping[str, Any], clients: Sequence[int], kept: Sequence[bytes], sent: bytes) -> Any:
        """Do what is asked for some clients.

        Args:
            asked: As in :func:`fedapm.simulation.engines.asking.answered`.
            clients: The clients' positions.
            kept: What each of them keeps.
            sent: What they receive.
        """
        broadcast = State(**unpack(sent)["down"])
        try:
            with collect_messages() as messages:
                answers = [
                    answered(self.problem, self.algorithm, asked, client, state_of(unpack(state)), broadcast, pack)
                    for client, state in zip(clients, kept, strict=True)
                ]
        except FedapmError as error:
            return {"refused": str(error)}
        except Exception:
            return {"failed": traceback.format_exc()}
        return {"clients": answers, "messages": messages}


def pack(groups: Groups) -> bytes:
    """Groups of named vectors and numbers as safetensors with a JSON note."""
    tensors: dict[str, Tensor] = {}
    fields: dict[str, Any] = {}
    for group, content in groups.items():
        flat, fields[group] = flatten(group, content)
        tensors |= {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in flat.items()}
    # a tensor too, because bytes that are loaded give no metadata back
    note = torch.frombuffer(bytearray(json.dumps(fields).encode()), dtype=torch.uint8)
    return safetensors.torch.save({**tensors, NOTE: note})


NOTE = "note"
"""Names of vectors have a stroke in them, so none is called this."""


def unpack(content: bytes) -> dict[str, dict[str, Value]]:
    """The inverse of :func:`pack`."""
    # copies, because some kernels round by alignment and these tensors begin anywhere
    tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load(content).items()}
    note = json.loads(tensors.pop(NOTE).numpy().tobytes())
    return {group: restore(group, tensors, fields) for group, fields in note.items()}


def _result(client: int, answer: Mapping[str, Any]) -> ClientResult:
    return result_of(client, answer, unpack(answer["update"]))


def _connect(workers: int | None, address: str | None) -> Any:
    """Ray, connected to a cluster; a program that is connected already stays so."""
    ray = require("ray", "ray", "--engine ray")
    if ray.is_initialized():
        return ray
    _IDLE.clear()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    here = {"num_cpus": workers or cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            configure_logging=False,
            **(here if address is None else {}),
        )
    except Exception as error:  # whatever a network and a foreign program can do
        where = f"the Ray cluster at {address} cannot be reached" if address is not None else "Ray cannot be started"
        raise FedapmError(f"{where}: {_reason(error)}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            # Ray ends the process at once, and what is under way would not be saved
            signal.signal(signal.SIGTERM, before)
    return ray


def _count(ray: Any, workers: int | None) -> int:
    """How many workers the cluster has room for."""
    free, there = (int(resources.get("CPU", 0)) for resources in (ray.available_resources(), ray.cluster_resources()))
    if workers is not None and workers > there:
        logger.warning("the Ray cluster has %d processors; %d workers are asked for.", there, workers)
    return max(min(workers or free, there), 1)


def _pickled(ray: Any, problem: Problem, algorithm: Algorithm) -> bytes:
    """What every worker needs, with modules of the user's own in it, which workers may not have."""
    modules = own_modules()
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        content: bytes = ray.cloudpickle.dumps((problem, algorithm))
    except Exception as error:  # whatever a network or a function of the user's own refuses
        raise FedapmError(f"data or network cannot be sent to the Ray cluster: {_reason(error)}") from None
    finally:
        for module in modules:
            ray.cloudpickle.unregister_pickle_by_value(module)
    return content


def _reason(error: BaseException) -> str:
    """An error of Ray's, which are long, in one line."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    # what went wrong in a worker is the last line, behind the path that led there
    return plain_line(lines[-1] if "Traceback" in str(error) or "ray::" in lines[0] else lines[0]).rstrip(".") + "."
