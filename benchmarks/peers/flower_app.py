"""The client of the Flower contender. A module of its own, so that Ray's processes import it and keep its data."""

from __future__ import annotations

import json
import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional
from workloads import Workload, network, samples, warm_up

WORKLOAD = "FEDAPM_BENCHMARK_WORKLOAD"

app = ClientApp()


@cache
def prepared() -> tuple[Workload, nn.Module, list[tuple[Tensor, Tensor]]]:
    """What a process makes once: one network for all clients, and their data."""
    torch.set_num_threads(1)
    work = Workload.of(json.loads(os.environ[WORKLOAD]))
    module = network(work)
    warm_up(module, work)
    return work, module, [samples(work, client) for client in range(work.clients)]


@app.query()
def prepare(message: Message, context: Context) -> Message:
    """Have everything in memory before the first round."""
    del context
    prepared()
    metrics = MetricRecord({"process": os.getpid()})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Some epochs from the model that was sent."""
    work, module, data = prepared()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data[int(context.node_config["partition-id"])]
    optimiser = torch.optim.SGD(module.parameters(), lr=work.lr)
    steps = 0
    for _ in range(work.epochs):
        for batch in torch.randperm(len(y)).split(work.batch):
            optimiser.zero_grad()
            functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
            steps += 1
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
