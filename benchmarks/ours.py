"""fedapm as a contender: rounds through the public Loop, with a given method, engine and store.

It is started by speed.py and talks through its standard input and output:

    python ours.py '{"workload": {...}, "method": "fedavg" | "fedapm", "engine": "sequential", "workers": 2}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from bare import RHO, SIGMA
from turns import Turns
from workloads import Workload, finish, network, samples

from fedapm import FedAlt, FedAPM, FedAvg
from fedapm.core.algorithm import Algorithm
from fedapm.core.metrics import summarize
from fedapm.core.record import RoundRecord
from fedapm.core.samples import Samples
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.data import ClientData, Federation
from fedapm.models import CNN
from fedapm.simulation.engines.base import LocalEngine, Resumed
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Callback, Loop, Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.state import RunState

METHODS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": FedAvg,
    # what the bare loop computes: the paper's mean, and fixed weights of the terms
    "fedapm": lambda: FedAPM(server="all", rho=RHO, sigma=SIGMA),
    "fedapm-default": FedAPM,
    "fedalt": FedAlt,
}
NEVER = 10**9
EVALUATED = 400
"""Training samples of a client that its loss is measured on: the default of ``engine.evaluate_train``."""


def federation(work: Workload) -> Federation:
    """The clients with their training and test data."""

    def part(client: int, name: str) -> Samples:
        x, y = samples(work, client, name)
        return Samples((x,), y)

    return Federation(ClientData(str(k), part(k, "train"), part(k, "test")) for k in range(work.clients))


def problem(work: Workload, method: Algorithm, data: Federation, seed: int = 0, device: str = "cpu") -> Problem:
    """The workload as a problem, from the same start as every other contender."""
    torch.manual_seed(0)
    module = CNN() if len(work.shape) > 1 else network(work)
    solver = SGDConfig(lr=work.lr, epochs=work.epochs, batch_size=work.batch)
    rule = SplitRule(personal=work.personal)
    return Problem(
        data, module, rule, adapt=method.adapt, solver=solver, seed=seed, device=device, evaluate_train=EVALUATED
    )


def engine(name: str, workers: int, problem: Problem, method: Algorithm) -> LocalEngine:
    """The engine of that name."""
    if name == "processes":
        return ProcessEngine(problem, method, workers)
    return VectorizedEngine(problem, method) if name == "vectorized" else SequentialEngine(problem, method)


def loop(work: Workload, method: Algorithm, name: str, workers: int = 1, seed: int = 0, device: str = "cpu") -> Loop:
    """Rounds without end that evaluate nothing by themselves."""
    learnt = problem(work, method, federation(work), seed, device)
    schedule = Schedule(NEVER, Sampling(count=work.selected), NEVER)
    return Loop(learnt, method, schedule, engine(name, workers, learnt, method))


def one_round(runs: Loop, start: RunState) -> RunState:
    """A single round, without the evaluation that a run ends with."""
    runs.state = start
    runs._round(start)
    return runs.state


class Contender(Callback):
    """Follows the loop: a round ends when it hears of it, and the next one begins when it returns."""

    def __init__(self, turns: Turns, work: Workload, loop: Loop) -> None:
        self.turns, self.work, self.loop = turns, work, loop

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Say what the round took and wait for the next."""
        del seconds
        finish(str(self.loop.problem.device))
        self.turns.done(self._steps(record), lambda: {"loss": self.loss(state, record["selected"][-1])})
        self.wait(state)

    def on_run_end(self, state: RunState, status: str) -> None:
        """Let the engine go."""
        del state, status
        self.loop.engine.close()

    def wait(self, state: RunState) -> None:
        """Until the next round is to begin."""

        def evaluate() -> dict[str, Any]:
            broadcast = self.loop.algorithm.broadcast(state.server)
            scores = summarize(self.loop.engine.evaluate(broadcast, self.loop.algorithm.views[0]))
            return {"accuracy": scores["accuracy"]["mean"]}

        self.turns.wait(evaluate=evaluate)

    def loss(self, state: RunState, client: int) -> float:
        """Of a client's model, on its own data."""
        problem, method = self.loop.problem, self.loop.algorithm
        u, v = method.client_model(method.broadcast(state.server), self.loop.engine.client_state(client).state)
        network = problem.network(client)
        network.load(u, v)
        data = problem.samples(client, "train")[:600]
        return network.loss(network.predict(data), data.targets).item()

    def _steps(self, record: RoundRecord) -> int:
        epochs = record["local"]["epochs"]
        return round(epochs * len(record["selected"]) * -(-self.work.samples // self.work.batch))


def main() -> None:
    turns = Turns()
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    work, method = Workload.of(asked["workload"]), METHODS[asked["method"]]()
    runs = loop(
        work, method, asked["engine"], asked.get("workers", 1), asked.get("seed", 0), asked.get("device", "cpu")
    )
    contender = Contender(turns, work, runs)
    runs.callbacks = [contender]
    start = runs.state
    turns.ready(loss=contender.loss(start, 0))
    contender.wait(start)
    runs.run(Resumed(start))


if __name__ == "__main__":
    main()
