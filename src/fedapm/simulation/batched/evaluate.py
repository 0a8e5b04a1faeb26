"""Scoring: the models of several clients evaluated at once, each on its own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedapm.core.batched import NotBatchable
from fedapm.core.metrics import BatchedPredictions, Score
from fedapm.core.samples import Samples
from fedapm.core.vec import Vec
from fedapm.simulation.batched.chain import LinearChain
from fedapm.simulation.batched.losses import losses
from fedapm.simulation.batched.network import BatchedNetwork
from fedapm.simulation.batched.stacked import side_by_side
from fedapm.simulation.problem import Problem


def can_evaluate(problem: Problem, network: BatchedNetwork, clients: Sequence[int]) -> bool:
    """Whether this is plain classification by fully connected layers, on clients that all have test data."""
    if any(metric.batched is None for metric in problem.metrics):
        return False
    if not isinstance(network, LinearChain) or problem.network(clients[0]).loss is not functional.cross_entropy:
        return False
    data = [problem.federation[k] for k in clients]
    return all(len(c.test) and c.test.classified and c.train.classified and c.train.targets.dim() == 1 for c in data)


@torch.no_grad()
def evaluate(
    problem: Problem, program: BatchedNetwork, clients: Sequence[int], u: Vec, v: Vec
) -> list[dict[str, Score]]:
    """What the sequential engine says of each of these clients with the models (u, v), stacked or shared."""
    network = problem.network(clients[0])
    network.module.eval()
    parameters = {**network.read(network.split.frozen), **u, **v}
    batched = frozenset(n for part in (u, v) if part.batched for n in part)

    def outputs(part: Literal["train", "test"]) -> BatchedPredictions:
        data = [_looked_at(problem, k, part) for k in clients]
        inputs = [side_by_side([d.inputs[k] for d in data]) for k in range(len(data[0].inputs))]
        targets = side_by_side([d.targets for d in data])
        sizes = torch.tensor([len(d) for d in data], device=targets.device)
        logits: Tensor = program.outputs(parameters, batched, inputs)
        if logits.dim() != 3 or logits.shape[2] < 2 or int(targets.max()) >= logits.shape[2]:
            raise NotBatchable("the network does not give a score for each class")
        present = torch.arange(targets.shape[1], device=targets.device) < sizes.unsqueeze(1)
        return BatchedPredictions(logits, targets, present, lambda: _loss(logits, targets, present))

    predictions = {"train": outputs("train"), "test": outputs("test")}
    columns = {m.name: m.batched(predictions[m.data]) for m in problem.metrics if m.batched is not None}
    return [{name: column[k] for name, column in columns.items()} for k in range(len(clients))]


def _looked_at(problem: Problem, client: int, part: Literal["train", "test"]) -> Samples:
    samples = problem.samples(client, part)
    some = problem.evaluated_samples(client) if part == "train" else None
    return samples if some is None else samples[some]


def _loss(logits: Tensor, targets: Tensor, present: Tensor) -> list[Score]:
    weights = present / present.sum(1, keepdim=True).double()
    return list(losses(functional.cross_entropy, targets, weights)(logits).tolist())
