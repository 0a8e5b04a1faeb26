"""pfl as a contender: federated averaging as its documentation has it, users' data as tensors in memory.

It is started by speed.py in the peers' environment and talks through its standard input and output:

    python pfl_peer.py '{"workload": {...}}'
"""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional
from turns import Turns
from workloads import Workload, accuracy, network, samples, warm_up


class Module(nn.Module):
    """The network with what pfl asks of one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.steps = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        return functional.cross_entropy(self.inner(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        raise NotImplementedError("nothing is evaluated")


class Averaging(FederatedAveraging):
    """pfl evaluates in round 0; here rounds are counted from 1, so that a round is training alone."""

    def get_next_central_contexts(self, model: Any, iteration: int, *params: Any) -> Any:
        return super().get_next_central_contexts(model, iteration + 1, *params)


class Contender(TrainingProcessCallback):
    """A round ends when pfl calls this, and the next one begins when it returns."""

    def __init__(self, turns: Turns, work: Workload, module: Module) -> None:
        self.turns, self.module, self.work = turns, module, work
        self.probe = samples(work, 0)

    @torch.no_grad()
    def loss(self) -> float:
        x, y = (part[:600] for part in self.probe)
        return functional.cross_entropy(self.module.inner(x), y).item()

    def on_train_begin(self, *, model: Any) -> Metrics:
        del model
        self.turns.ready(loss=self.loss())
        self.wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        del aggregate_metrics, model, central_iteration
        done, self.module.steps = self.module.steps, 0
        self.turns.done(done, lambda: {"loss": self.loss()})
        self.wait()
        return False, Metrics()

    def wait(self) -> None:
        self.turns.wait(evaluate=lambda: {"accuracy": accuracy(self.work, self.module.inner)})


def main() -> None:
    turns = Turns()
    asked = json.loads(sys.argv[1])
    work = Workload.of(asked["workload"])
    torch.set_num_threads(1)
    np.random.seed(asked.get("seed", 0))
    module = Module(network(work))
    warm_up(module.inner, work)

    @cache
    def user(client: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset(samples(work, client), user_id=str(client))

    clients = list(range(work.clients))
    for client in clients:
        user(client)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = FederatedDataset(user, get_user_sampler("minimize_reuse", clients))
    Averaging().run(
        NNAlgorithmParams(10**9, 10**9, work.selected, None),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch),
        NNEvalHyperParams(local_batch_size=None),
        [Contender(turns, work, module)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
