"""The learning problem as a node sees it (its own data only) and as the server does (no data at all)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fedapm.core import algorithm as core
from fedapm.core.algorithm import Upload
from fedapm.core.network import Loss
from fedapm.core.samples import Samples, mean_batches
from fedapm.core.task import LocalTask
from fedapm.core.vec import Vec
from fedapm.data.clients import ClientData
from fedapm.data.federation import Federation
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.own import with_adapters
from fedapm.experiments.settings import Experiment
from fedapm.flower.fields import items, table, whole
from fedapm.flower.text import shown
from fedapm.privacy import protection
from fedapm.simulation.engines.base import client_init
from fedapm.simulation.engines.sequential import train_client
from fedapm.simulation.problem import Model, Problem, Weighting
from fedapm.uploads import Masked, Transmitted, layer_of

Columns = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and type of each tensor of one sample."""
SAMPLES, CLASSES, COLUMNS, DIMENSIONS, NUMBERS = 10**9, 10**6, 64, 8, 1 << 26
"""The most that a client may claim to have: samples, classes, tensors in a sample, and in each of them dimensions and
numbers. The server makes placeholders of these shapes."""
TYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64",
)  # fmt: skip
"""The types that data may have."""
ODD = 0.734375
"""A weight that no client has: where an upload carries it, its weight is the client's α_i."""


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
    def from_json(cls, fields: Any, most: int = SAMPLES) -> DataSummary:
        """Read a summary back from its JSON fields, each of them checked.

        Args:
            fields: What :meth:`to_json` gave.
            most: The most samples a client may claim.
        """
        counts = ("train", "test", "different", "classes")
        summary = table(fields, "its data summary", (*counts, "inputs", "target"), (*counts, "inputs", "target"))
        train = whole(summary["train"], "its number of training samples", 1, most)
        test = whole(summary["test"], "its number of test samples", 0, most)
        classes = whole(summary["classes"], "its number of classes", 0, CLASSES)
        different = whole(summary["different"], "its number of different classes", 0, classes)
        inputs, target = (_columns(summary[name], name) for name in ("inputs", "target"))
        if len(target) != 1:
            raise FedapmError(f"its data summary should have one target, not {len(target)}.")
        return cls(train, test, different, classes, inputs, target)

    def without_counts(self, samples: int | None) -> DataSummary:
        """The summary with nothing in it that depends on single samples but, where no number is given, their count.

        Args:
            samples: The number that stands for the training samples.
        """
        return replace(self, train=self.train if samples is None else samples, test=0, different=0)

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON fields."""
        columns = {name: [[list(shape), kind] for shape, kind in getattr(self, name)] for name in ("inputs", "target")}
        return asdict(self) | columns

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
            _network(experiment, model, membership.classes, alone.shapes),
            build.split_rule(experiment),
            adapt=experiment.algorithm.adapt,
            solver=experiment.solver,
            loss=loss,
            weighting=weighting,
            seed=experiment.engine.seed,
            rounds=experiment.engine.rounds,
            device=device or experiment.engine.device,
            protection=protection(experiment.privacy, experiment.solver),
            evaluate_train=build.evaluate_train(experiment),
        )
        self.position = membership.position
        self.alphas = [weighting.alpha(len(data.train), membership.samples, membership.m)]
        self.unit = weighting.unit(membership.m)
        self.mean_batches = membership.batches

    def task(self, client: int, round: int) -> LocalTask:
        """The client's local problem in a round, with the random streams of its position among all."""
        return replace(super().task(client, round), client=self.position)

    def stream(self, client: int) -> int:
        """The client's position among all."""
        del client
        return self.position


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
    problem = build.problem(experiment, federation, _network(experiment, model, classes, first.shapes), loss)
    sizes = [summary.train for summary in summaries.values()]
    problem.alphas = Weighting(experiment.engine.weights, experiment.engine.units).alphas(sizes)
    problem.mean_batches = mean_batches(sizes, experiment.solver.batch_size)
    if problem.per_client:
        raise FedapmError(
            "on Flower the server makes the network without any data; give a model function with no argument."
        )
    return problem


def _network(experiment: Experiment, model: Model | None, classes: int, shapes: Sequence[Sequence[int]]) -> Model:
    """The app's own network, or the one that the settings name; with adapters where the settings ask for them."""
    if model is None:
        return build.named_network(experiment, classes, shapes)
    return with_adapters(model, experiment.model)


Template = dict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]]
"""For every vector in an upload: the shape and type of each of its tensors."""
WIRE = "wire"
"""The name of the one vector that is sent where sums are coded."""


@dataclass(frozen=True)
class UploadForm:
    """What the uploads of a method look like."""

    template: Template
    """What is sent: the sums, or what they are coded in."""
    weighed: bool
    """Whether their weight is the client's α_i, and not one that the method makes up."""
    decode: Callable[[Vec], Mapping[str, Vec]] | None = None
    """Makes the sums of what is sent, where they are coded; of masked messages only single numbers."""
    like: Mapping[str, Vec] = field(default_factory=dict)
    """The sums, all zero."""
    masked: bool = False


def sent_vectors(upload: Upload) -> Mapping[str, Vec]:
    """The vectors of an upload that are sent."""
    return upload.sums if upload.wire is None else {WIRE: upload.wire}


def upload_form(problem: Problem, experiment: Experiment) -> UploadForm:
    """What this method's uploads look like, found by one round on placeholder samples."""
    algorithm, alphas = experiment.method, problem.alphas
    state = client_init(problem, algorithm)(0)
    broadcast = algorithm.broadcast(algorithm.server_init(problem.u0))
    problem.alphas = [ODD] * len(alphas)
    try:
        result = train_client(problem, algorithm, 0, state, broadcast, 1)
    except FedapmError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FedapmError(
            f"{algorithm.label} cannot train this network on inputs of the shapes the clients reported ({reason})."
        ) from error
    finally:
        problem.alphas = alphas
    upload = result.update.upload
    forms = {
        n: {part: (tuple(t.shape), t.dtype) for part, t in vector.items()} for n, vector in sent_vectors(upload).items()
    }
    like = {n: vector.zeros() for n, vector in upload.sums.items()}
    masked = layer_of(algorithm, Masked) is not None
    decode = None
    if upload.wire is not None and (layer := layer_of(algorithm, Transmitted)) is not None:
        seen = {n: vector for n, vector in like.items() if n == core.NUMBERS} if masked else like
        decode = partial(layer.decode, like=seen)
    return UploadForm(forms, upload.weight == ODD, decode, like, masked)


def _columns(value: Any, what: str) -> Columns:
    columns = []
    for column in items(value, f"its {what}", COLUMNS):
        if len(pair := items(column, f"one of its {what}", 2)) != 2:
            raise FedapmError(f"each of its {what} should be a shape and a type.")
        shape = tuple(whole(n, "a size of its data", 0, NUMBERS) for n in items(pair[0], "a shape", DIMENSIONS))
        if math.prod(shape) > NUMBERS:
            raise FedapmError(f"its samples have {math.prod(shape)} numbers each; at most {NUMBERS} are allowed.")
        if pair[1] not in TYPES:
            raise FedapmError(f"its data has the type {shown(pair[1])}; choose from {', '.join(TYPES)}.")
        columns.append((shape, str(pair[1])))
    return tuple(columns)


def _column(tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch.")
