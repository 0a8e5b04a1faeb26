"""The learning problem as a node sees it (its own data only) and as the server does (no data at all)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fedapm.core.network import Loss
from fedapm.core.samples import Samples
from fedapm.core.task import LocalTask
from fedapm.data.federation import ClientData, Federation
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.settings import Experiment
from fedapm.simulation.engines.base import client_init
from fedapm.simulation.engines.sequential import train_client
from fedapm.simulation.problem import Model, Problem, Weighting

Columns = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and type of each tensor of one sample."""


@dataclass(frozen=True)
class DataSummary:
    """What the server learns about a client's data: sizes and shapes."""

    train: int
    test: int
    different: int
    """How many different classes occur in it; 0 for regression."""
    classes: int
    """How many outputs its classes need; 0 for regression."""
    inputs: Columns
    target: Columns

    @classmethod
    def of(cls, data: ClientData, federation: Federation) -> DataSummary:
        """Summarize a client's data."""
        return cls(
            len(data.train),
            len(data.test),
            data.classes,
            federation.classes,
            tuple(_column(t) for t in data.train.inputs),
            (_column(data.train.targets),),
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> DataSummary:
        """Read a summary back from its JSON fields, each of them checked."""
        try:
            train, test, different, classes = (int(fields[name]) for name in ("train", "test", "different", "classes"))
            inputs, target = (
                tuple((tuple(map(int, shape)), str(dtype)) for shape, dtype in fields[name])
                for name in ("inputs", "target")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FedapmError(f"its data summary is malformed ({error}).") from None
        known = all(isinstance(getattr(torch, dtype, None), torch.dtype) for _, dtype in (*inputs, *target))
        if min(train - 1, test, different, classes) < 0 or not known or len(target) != 1:
            raise FedapmError("its data summary is malformed (sizes or types are out of range).")
        return cls(train, test, different, classes, inputs, target)

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON fields."""
        return asdict(self)

    @property
    def classified(self) -> bool:
        """Whether its targets are classes."""
        return self.classes > 0

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each input of one sample."""
        return tuple(shape for shape, _ in self.inputs)


@dataclass(frozen=True)
class Membership:
    """A client's position in the federation, and what it must know about the others."""

    position: int
    m: int
    """How many clients there are."""
    samples: int
    """Training samples of all clients together."""
    classes: int
    """How many outputs the classes of all clients need."""
    batches: float
    """Mean over all clients of the batches in an epoch."""


class NodeProblem(Problem):
    """One client's problem on its own node, with the weight and the random streams it has among all clients."""

    def __init__(
        self,
        experiment: Experiment,
        data: ClientData,
        membership: Membership,
        model: Model | None = None,
        loss: Loss | None = None,
        device: str | None = None,
    ) -> None:
        alone = Federation([data], experiment.data.full_name)
        weighting = Weighting(experiment.engine.weights, experiment.engine.units)
        super().__init__(
            alone,
            model or build.named_network(experiment, membership.classes, alone.shapes),
            build.split_rule(experiment),
            adapt=experiment.algorithm.adapt,
            solver=experiment.solver,
            loss=loss,
            weighting=weighting,
            seed=experiment.engine.seed,
            rounds=experiment.engine.rounds,
            device=device or experiment.engine.device,
        )
        self.position = membership.position
        self.alphas = [weighting.alpha(len(data.train), membership.samples, membership.m)]
        self.unit = weighting.unit(membership.m)
        self.mean_batches = membership.batches

    def task(self, client: int, round: int) -> LocalTask:
        """The client's local problem in a round, with the random streams of its position among all."""
        return replace(super().task(client, round), client=self.position)


def server_problem(
    experiment: Experiment, summaries: Mapping[str, DataSummary], model: Model | None = None, loss: Loss | None = None
) -> Problem:
    """The problem without any data: every client gets two placeholder samples of the right shape."""
    first = next(iter(summaries.values()))
    classes = max(summary.classes for summary in summaries.values())
    inputs = tuple(torch.ones(2, *shape, dtype=getattr(torch, dtype)) for shape, dtype in first.inputs)
    ((shape, dtype),) = first.target
    targets = torch.arange(2) % classes if first.classified else torch.ones(2, *shape, dtype=getattr(torch, dtype))
    placeholder = Samples(inputs, targets)
    clients = [ClientData(client, placeholder, placeholder) for client in summaries]
    federation = Federation(clients, experiment.data.full_name, class_names=list(map(str, range(classes))))
    problem = build.problem(
        experiment, federation, model or build.named_network(experiment, classes, first.shapes), loss
    )
    if problem.per_client:
        raise FedapmError(
            "on Flower the server makes the network without any data; give a model function with no argument."
        )
    return problem


Template = dict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]]
"""For every sum in an upload: the shape and type of each of its tensors."""


def template(problem: Problem, experiment: Experiment) -> Template:
    """The names, shapes and types of this method's uploads, found by one round on placeholder samples."""
    algorithm = experiment.algorithm
    state = client_init(problem, algorithm)(0)
    broadcast = algorithm.broadcast(algorithm.server_init(problem.u0))
    try:
        result = train_client(problem, algorithm, 0, state, broadcast, 1)
    except FedapmError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FedapmError(
            f"{algorithm.label} cannot train this network on inputs of the shapes the clients reported ({reason})."
        ) from error
    sums = result.update.upload.sums
    return {name: {n: (tuple(t.shape), t.dtype) for n, t in vector.items()} for name, vector in sums.items()}


def _column(tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch.")
