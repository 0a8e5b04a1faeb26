"""One case of the scale benchmark, in a process of its own so that the peak of memory is its own.

It is started by scale.py and prints its result as JSON:

    python scale_case.py '{"kind": "tiny", "population": 1000, "cohorts": [100], "store": "table", "rounds": 20}'
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
import usage
from ours import NEVER, engine, problem
from workloads import CLASSES, WORKLOADS, Workload

from fedapm import FedAPM
from fedapm.core.algorithm import Algorithm, State
from fedapm.core.record import RoundRecord
from fedapm.core.samples import Samples
from fedapm.core.vec import Vec
from fedapm.data import ClientData, Federation
from fedapm.simulation.engines.base import Resumed, client_init
from fedapm.simulation.loop import Callback, Loop, Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.state import RunState
from fedapm.simulation.stores.base import ClientState, InitClient, Store
from fedapm.simulation.stores.disk import DiskStore
from fedapm.simulation.stores.memory import MemoryStore
from fedapm.simulation.stores.table import TableStore

WARM = 2
CHUNK = 1 << 24
"""Bytes that are given to a store at a time."""


class Enough(Exception):
    """So many rounds are enough."""


class Watch(Callback):
    """Notes what every round took."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._began = time.process_time()

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Note it, and stop when there are enough."""
        del record
        self.wall.append(seconds)
        self.cpu.append(time.process_time() - self._began)
        if state.round == self.rounds + WARM:
            raise Enough
        self._began = time.process_time()


class Stages:
    """How long each stage of setting up took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    def done(self, name: str) -> None:
        """A stage is over."""
        now = time.perf_counter()
        self.seconds[name], self._began = now - self._began, now


def clients(work: Workload) -> list[ClientData]:
    """Every client with samples of its own; one allocation for all, so that making them is quick."""
    stream = torch.Generator().manual_seed(0)
    inputs = torch.randn(work.clients, work.samples, *work.shape, generator=stream)
    targets = torch.randint(0, CLASSES, (work.clients, work.samples), generator=stream)
    return [
        ClientData(str(k), Samples((x,), y), Samples((x[:0],), y[:0]))
        for k, (x, y) in enumerate(zip(inputs, targets, strict=True))
    ]


def make_store(kind: str, population: int, init: InitClient) -> Store:
    """The store of that name."""
    if kind == "disk":
        return DiskStore.temporary(init, population)
    return TableStore(init, population) if kind == "table" else MemoryStore(init)


def touch_all(store: Store, population: int) -> int:
    """Give every client a memory of its own, as if all had taken part before; returns the bytes of one."""
    size = store.get(0).nbytes
    step = max(1, CHUNK // size)
    for first in range(0, population, step):
        some = range(first, min(first + step, population))
        if isinstance(store, TableStore):
            store.scatter(some, store.gather(some))
            continue
        store.commit({client: _own(store.get(client)) for client in some})
    return size


def _own(kept: ClientState) -> ClientState:
    state = {field: value.clone() if isinstance(value, Vec) else value for field, value in kept.state.items()}
    return ClientState(State(**state), kept.buffers)


def rounds(made: Problem, method: Algorithm, runs: str, store: Store, cohort: int, count: int) -> dict[str, Any]:
    """What a round takes, from a store that is there already."""
    watch = Watch(count)
    schedule = Schedule(NEVER, Sampling(count=cohort), NEVER)
    running = engine(runs, 1, made, method)
    running.store = store
    loop = Loop(made, method, schedule, running, [watch])
    with suppress(Enough):
        loop.run(Resumed(loop.state))
    wall, cpu = watch.wall[WARM:], watch.cpu[WARM:]
    return {
        "cohort": cohort,
        "wall": {"best": min(wall), "median": statistics.median(wall)},
        "cpu": {"best": min(cpu), "median": statistics.median(cpu)},
    }


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    population = asked["population"]
    work = replace(WORKLOADS[asked["kind"]], clients=population, **asked.get("change", {}))
    method = FedAPM()
    runs = "vectorized" if asked["kind"] == "tiny" else "sequential"
    stages = Stages()
    data = clients(work)
    stages.done("samples")
    federation = Federation(data)
    stages.done("federation")
    made = problem(work, method, federation)
    del data, federation
    stages.done("problem")
    before = usage.peak_mib()

    store = make_store(asked["store"], population, client_init(made, method))
    state = touch_all(store, population)
    stages.done("memories")
    found = [rounds(made, method, runs, store, cohort, asked["rounds"]) for cohort in asked["cohorts"]]
    disk = 0
    if isinstance(store, DiskStore):
        disk = sum(entry.stat().st_blocks * 512 for entry in store.folder.iterdir())
    answer = {
        **{key: asked[key] for key in ("kind", "population", "store")},
        "samples": work.samples,
        "setting_up": stages.seconds,
        "state_bytes": state,
        "prepared_mib": before,
        "peak_mib": usage.peak_mib(),
        "disk_mib": disk / 2**20,
        "rounds": found,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
