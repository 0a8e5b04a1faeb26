"""Flower with its Ray simulation as a contender: FedAvg as its documentation has it, one process a core.

It is started by speed.py in the peers' environment and talks through its standard input and output:

    python flower_peer.py '{"workload": {...}, "processes": 2}'
"""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import sys
import tempfile

HOME = tempfile.mkdtemp(prefix="fedapm-flower-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
SETTINGS = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_HOME": HOME,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
os.environ |= SETTINGS  # before Flower is imported

import torch  # noqa: E402
from flower_app import WORKLOAD, app  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from torch.nn import functional  # noqa: E402
from turns import Turns  # noqa: E402
from workloads import Workload, accuracy, network, samples  # noqa: E402


class Contender:
    """The server: what Strategy.start does in a round of training, when it is told to."""

    def __init__(self, turns: Turns, work: Workload, processes: int) -> None:
        self.turns, self.work, self.processes = turns, work, processes
        self.probe = samples(work, 0)
        self.module = network(work)

    def run(self, grid: Grid, context: Context) -> None:
        """Rounds without end."""
        del context
        work = self.work
        strategy = FedAvg(
            fraction_train=work.selected / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.selected,
            min_available_nodes=work.clients,
        )
        arrays = ArrayRecord(self.module.state_dict())
        self.prepare(grid)
        self.turns.ready(loss=self.loss(arrays))
        number = 0
        while True:
            self.turns.wait(evaluate=lambda arrays=arrays: {"accuracy": self.accuracy(arrays)})
            number += 1
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            replies = list(grid.send_and_receive(messages))
            found, _ = strategy.aggregate_train(number, replies)
            if found is None:
                raise RuntimeError("no client answered")
            arrays = found
            steps = sum(int(reply.content["metrics"]["steps"]) for reply in replies)
            self.turns.done(steps, lambda arrays=arrays: {"loss": self.loss(arrays)})

    def prepare(self, grid: Grid) -> None:
        """Until every process has said that it is ready."""
        seen: set[float] = set()
        while len(seen) < self.processes:
            nodes = list(grid.get_node_ids())[: 2 * self.processes]
            messages = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
            seen |= {reply.content["metrics"]["process"] for reply in grid.send_and_receive(messages)}

    def accuracy(self, arrays: ArrayRecord) -> float:
        """Of the server's model, as a mean over clients."""
        self.module.load_state_dict(arrays.to_torch_state_dict())
        return accuracy(self.work, self.module)

    @torch.no_grad()
    def loss(self, arrays: ArrayRecord) -> float:
        """Of the server's model on one client's data."""
        self.module.load_state_dict(arrays.to_torch_state_dict())
        x, y = (part[:600] for part in self.probe)
        return functional.cross_entropy(self.module(x), y).item()


def main() -> None:
    turns = Turns()
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    random.seed(asked.get("seed", 0))  # Flower draws a round's clients from it
    os.environ[WORKLOAD] = json.dumps(asked["workload"])
    work, processes = Workload.of(asked["workload"]), asked["processes"]
    server = ServerApp()
    server.main()(Contender(turns, work, processes).run)
    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "num_cpus": processes},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
