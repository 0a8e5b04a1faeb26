"""What is to be learnt, as a node knows it (its own data) and as the server does (no data at all)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fedapm import models
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
"""Shape and type of some tensors of one sample."""


@dataclass(frozen=True)
class DataSummary:
    """What a client tells of its data: sizes and shapes."""

    train: int
    test: int
    different: int
    """How many different classes it has; 0 for quantities."""
    classes: int
    """How many outputs its classes need; 0 for quantities."""
    inputs: Columns
    target: Columns

    @classmethod
    def of(cls, data: ClientData, federation: Federation) -> DataSummary:
        """The outline of a client's data."""
        return cls(
            len(data.train),
            len(data.test),
            data.classes,
            federation.classes,
            tuple(_column(t) for t in data.train.inputs),
            (_column(data.train.targets),),
        )

    @classmethod
    def read(cls, note: Mapping[str, Any]) -> DataSummary:
        """An outline out of a note, every field checked."""
        try:
            train, test, different, classes = (int(note[name]) for name in ("train", "test", "different", "classes"))
            inputs, target = (
                tuple((tuple(map(int, shape)), str(kind)) for shape, kind in note[name])
                for name in ("inputs", "target")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FedapmError(f"its note on its data is not one ({error}).") from None
        known = all(isinstance(getattr(torch, kind, None), torch.dtype) for _, kind in (*inputs, *target))
        if min(train - 1, test, different, classes) < 0 or not known or len(target) != 1:
            raise FedapmError("its note on its data is not one (sizes or types are out of range).")
        return cls(train, test, different, classes, inputs, target)

    def note(self) -> dict[str, Any]:
        """The outline as a note holds it."""
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
class Place:
    """Where a client stands among all."""

    position: int
    m: int
    samples: int
    """Training samples of all clients together."""
    classes: int


class NodeProblem(Problem):
    """One client's problem on its own node: everything is computed as if all clients were here."""

    def __init__(
        self,
        experiment: Experiment,
        data: ClientData,
        place: Place,
        model: Model | None = None,
        loss: Loss | None = None,
        device: str | None = None,
    ) -> None:
        alone = Federation([data], experiment.data.name)
        weighting = Weighting(experiment.engine.weights, experiment.engine.units)
        super().__init__(
            alone,
            model or network(experiment, place.classes, alone.shapes),
            experiment.model.rule,
            adapt=experiment.algorithm.adapt,
            solver=experiment.solver,
            loss=loss,
            weighting=weighting,
            seed=experiment.engine.seed,
            rounds=experiment.engine.rounds,
            device=device or experiment.engine.device,
        )
        self.position = place.position
        self.alphas = [weighting.alpha(len(data.train), place.samples, place.m)]
        self.unit = weighting.unit(place.m)

    def task(self, client: int, round: int) -> LocalTask:
        """The client's local problem in a round, with the random streams of its position among all."""
        return replace(super().task(client, round), client=self.position)


def server_problem(
    experiment: Experiment, outlines: Mapping[str, DataSummary], model: Model | None = None, loss: Loss | None = None
) -> Problem:
    """The problem without its data: in their place every client has two made-up samples of the right shape."""
    first = next(iter(outlines.values()))
    classes = max(o.classes for o in outlines.values())
    inputs = tuple(torch.ones(2, *shape, dtype=getattr(torch, kind)) for shape, kind in first.inputs)
    ((shape, kind),) = first.target
    targets = torch.arange(2) % classes if first.classified else torch.ones(2, *shape, dtype=getattr(torch, kind))
    made_up = Samples(inputs, targets)
    clients = [ClientData(client, made_up, made_up) for client in outlines]
    population = Federation(clients, experiment.data.name)
    made = build.problem(experiment, population, model or network(experiment, classes, first.shapes), loss)
    if made.per_client:
        raise FedapmError("on Flower the server makes the network without any data; give a model of no argument.")
    return made


def network(experiment: Experiment, classes: int, shapes: Sequence[Sequence[int]]) -> Model:
    """The network the experiment names."""
    if experiment.model.name is None:
        raise FedapmError(f"say which network to train on {experiment.data.name} (model.name).")
    return models.factory(experiment.model.name, classes, experiment.model.options, shapes)


Template = dict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]]
"""Of every sum in an upload its names, shapes and types."""


def template(problem: Problem, experiment: Experiment) -> Template:
    """What an upload of this method looks like, learnt by trying it on made-up samples."""
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
            f"{algorithm.label} cannot be tried with this network on inputs of the shapes the clients named ({reason})."
        ) from error
    sums = result.update.upload.sums
    return {name: {n: (tuple(t.shape), t.dtype) for n, t in vector.items()} for name, vector in sums.items()}


def _column(tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch.")
