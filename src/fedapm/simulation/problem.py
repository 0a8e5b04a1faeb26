"""Problem: a federation, a network and a split, ready to hand out each client's task."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from fedapm.core import random
from fedapm.core.imports import described, place
from fedapm.core.metrics import METRICS, Metric
from fedapm.core.network import Loss, Network
from fedapm.core.per_sample import Protection, check_protectable
from fedapm.core.precision import check_precision
from fedapm.core.samples import Samples, mean_batches
from fedapm.core.solver import SGDConfig
from fedapm.core.split import Split, SplitRule, check_same_shared
from fedapm.core.task import LocalTask
from fedapm.core.vec import Vec
from fedapm.data.clients import ClientData
from fedapm.data.federation import Federation
from fedapm.errors import FedapmError
from fedapm.simulation.class_biases import check_class_biases, from_frequencies, output_biases

logger = logging.getLogger(__name__)

EVALUATED = 1000
"""Clients that are evaluated where they are not in memory and nothing else is said."""
SIZED = 100
"""Clients whose sizes stand for those of all, where not all are known."""
Adapt = Callable[[nn.Module, Split], tuple[nn.Module, Split]]
Model = nn.Module | Callable[..., nn.Module]
"""A module; or a function that makes one, of no argument or of a client's data."""


@dataclass(frozen=True)
class Weighting:
    """How much each client counts, and in which units hyperparameters are given.

    In per-client units client i minimises m·α_i·f_i, so that ρ, σ and the step size mean the same for any number
    of clients. In the paper's units it minimises α_i·f_i. With uniform weights a setting in the paper's units is the
    per-client one with ρ, σ and μ divided by m, ξ by m² and the step size multiplied by m.
    """

    weights: Literal["uniform", "samples"] = "uniform"
    units: Literal["client", "paper"] = "client"

    def alphas(self, sizes: list[int]) -> list[float]:
        """Every client's α_i, in these units."""
        m, n = len(sizes), sum(sizes)
        return [self.unit(m)] * m if self.weights == "uniform" else [self.alpha(size, n, m) for size in sizes]

    def alpha(self, size: int, samples: int, m: int) -> float:
        """α_i of a client with so many of all samples, which m clients have."""
        share = 1.0 if self.weights == "uniform" else m * size / samples
        return share * self.unit(m)

    def unit(self, m: int) -> float:
        """The weight of an f_i that is not weighed."""
        return 1.0 if self.units == "client" else 1.0 / m


@dataclass(frozen=True)
class Start:
    """Where one client starts: its network, its personal part and its buffers."""

    network: Network
    v0: Vec
    buffers: Vec
    biases: tuple[str, ...] = ()
    """The personal biases of output layers."""


class Problem:
    """What is to be learnt, as one method sees it: ``adapt`` gives the network and the blocks it works on."""

    def __init__(
        self,
        federation: Federation,
        model: Model,
        rule: SplitRule | None = None,
        *,
        adapt: Adapt | None = None,
        solver: SGDConfig | None = None,
        loss: Loss | None = None,
        weighting: Weighting | None = None,
        metrics: Sequence[Metric] | None = None,
        seed: int = 0,
        rounds: int = 1,
        device: str | torch.device = "cpu",
        protection: Protection | None = None,
        evaluate_clients: int | None = None,
        evaluate_train: int | None = None,
    ) -> None:
        self.protection = protection
        lazy = federation.lazy_clients is not None
        self.evaluated = evaluated_clients(len(federation), evaluate_clients or (EVALUATED if lazy else None))
        """The positions of the clients that evaluations, the closing phase and a run's files are about."""
        self.evaluate_train = evaluate_train
        self.federation, self.model, self.rule = federation, model, rule or SplitRule()
        self.adapt = adapt or (lambda network, split: (network, split))
        self.solver, self.seed, self.rounds = solver or SGDConfig(), seed, rounds
        self.loss = loss or default_loss(federation)
        self.metrics = tuple(METRICS.values() if metrics is None else metrics)
        self.device = _device(device)
        check_precision(self.solver.precision, self.device)
        weighting = weighting or Weighting()
        self.alphas = client_weights(federation, weighting)
        self.mean_batches = mean_batches(_known_sizes(federation), self.solver.batch_size)
        self.unit = weighting.unit(len(federation))
        self._make, self.per_client = model_factory(model)
        if self.per_client and lazy:
            raise FedapmError(
                "the model function makes a network for each client of its data, but the clients are not in memory; "
                "give a function without arguments, or clients that are (Federation.from_clients)."
            )
        self._networks: dict[str, Network] = {}
        self._starts: dict[int, Start] = {}
        self._v0: dict[int, Vec] = {}
        first = self._start(0)
        if protection is not None:
            check_protectable(first.network.module)
        self.federation = federation = as_network_takes(federation, first.network.module, self.device)
        if (order := picture_order(first.network.module)) is not None:
            self.federation = federation.with_memory_format(order)
        self.u0 = first.network.read(first.network.split.shared)
        self._check_shared()

    def __len__(self) -> int:
        return len(self.federation)

    def with_clients(self, federation: Federation) -> Problem:
        """The same problem for other clients, each of which counts as one of these does on average."""
        other = Problem(
            federation,
            self.model,
            self.rule,
            adapt=self.adapt,
            solver=self.solver,
            loss=self.loss,
            metrics=self.metrics,
            seed=self.seed,
            rounds=self.rounds,
            device=self.device,
            protection=self.protection,
            evaluate_train=self.evaluate_train,
        )
        return other.weighted_as(self.unit, self.mean_batches)

    def weighted_as(self, unit: float, batches: float) -> Problem:
        """The same problem where every client counts as the mean one of a run does.

        Args:
            unit: The weight of an f_i in that run.
            batches: The mean number of batches of its clients, which decides automatic penalties.
        """
        self.unit, self.alphas, self.mean_batches = unit, [unit] * len(self), batches
        return self

    def start(self, client: int) -> Start:
        """Where a client starts; made when first asked for."""
        start = self._common(client)
        return replace(start, v0=self._own_v0(start, client)) if self.own_starts else start

    @property
    def own_starts(self) -> bool:
        """Whether where a client starts depends on its data."""
        return self.solver.bias_v == "frequencies"

    def network(self, client: int) -> Network:
        """The network a client computes with; clients of the same architecture use the same module."""
        return self._common(client).network

    def samples(self, client: int, part: Literal["train", "test"]) -> Samples:
        """A client's data on the device."""
        data = self.federation[client]
        samples = data.train if part == "train" else data.test
        return samples if self.device.type == "cpu" else samples.to(self.device)

    def evaluated_samples(self, client: int) -> torch.Tensor | None:
        """The positions of the training samples that evaluations are of, the same in all of them; None for all."""
        size, most = len(self.federation[client].train), self.evaluate_train
        if most is None or size <= most:
            return None
        stream = random.numpy_generator(0, "evaluated samples", self.stream(client))
        return torch.from_numpy(np.sort(stream.choice(size, size=most, replace=False))).to(self.device)

    def stream(self, client: int) -> int:
        """The number that a client's random streams are keyed by."""
        return client

    def task(self, client: int, round: int) -> LocalTask:
        """A client's local problem in a round."""
        return LocalTask(
            self.network(client),
            self.samples(client, "train"),
            self.solver,
            self.seed,
            client,
            round,
            alpha=self.alphas[client],
            unit=self.unit,
            mean_batches=self.mean_batches,
            lr_factor=self.lr_factor(round),
            v0=self.start(client).v0,
            protection=self.protection,
        )

    def personal_task(self, client: int, round: int) -> LocalTask:
        """A client's local problem in a personal phase after a round.

        It has the random streams of the round that would follow, and the step size of the round that was: a larger one
        would undo what a falling step size has settled.
        """
        return replace(self.task(client, round + 1), lr_factor=self.lr_factor(round))

    def lr_factor(self, round: int) -> float:
        """The schedule's factor on the step size in a round."""
        return self.solver.schedule(max(round - 1, 0), self.rounds)

    def network_digest(self) -> str:
        """One sum over the names and shapes in every client's network, how it is split, and what is frozen in it."""
        total = hashlib.sha256()
        for client in range(len(self)) if self.per_client else range(1):
            network = self.network(client)
            split = network.split
            parts = [network.read(names) for names in (split.shared, split.personal, split.frozen)]
            for part in (*parts, network.buffers()):
                total.update(repr([(name, tuple(t.shape), t.dtype) for name, t in part.items()]).encode())
            for tensor in network.read(split.frozen).values():
                total.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()[:32]

    @property
    def frozen_digest(self) -> str:
        """One sum over what is frozen in the network; empty where nothing is."""
        return self.network(0).frozen_digest

    def keep_features(self) -> None:
        """Compute what a frozen base makes of every client's samples, so that forked processes find it."""
        if self.federation.lazy_clients is not None or not self.network(0).keeps_features:
            return
        for client in range(len(self)):
            for samples in (self.samples(client, "train"), self.samples(client, "test")):
                self.network(client).kept(samples)

    def _common(self, client: int) -> Start:
        """Where all clients of a network start."""
        return self._start(client if self.per_client else 0)

    def _own_v0(self, start: Start, client: int) -> Vec:
        """v⁰ with what the client's classes say."""
        known = self._v0.get(client)
        if known is None:
            known = from_frequencies(start.v0, start.biases, self.federation[client].train.targets)
            # of very many clients only a few are in memory at a time
            if self.federation.lazy_clients is None:
                self._v0[client] = known
        return known

    def _start(self, client: int) -> Start:
        if client not in self._starts:
            with random.seeded_globally(torch.device("cpu"), self.seed, "init"):
                module = self._make(self.federation[client])
            _check_built(module)
            module = module.to(self.device)
            named = self.rule.apply(module)
            before = {n: p.numel() for n, p in module.named_parameters() if n not in named.frozen}
            if self.own_starts:
                check_class_biases(self.federation, before, self.protection)
            with random.seeded_globally(torch.device("cpu"), self.seed, "init of added parts"):
                module, split = self.adapt(module, named)
            network = Network(module.to(self.device), split, self.loss)
            self.drift_names = named.shared
            biases = output_biases(network.module, split.personal, before)
            start = Start(network, network.read(split.personal), network.buffers(), biases)
            kept = self._networks.setdefault(_architecture(network), network)
            self._starts[client] = replace(start, network=kept)
        return self._starts[client]

    def _check_shared(self) -> None:
        if not self.per_client:
            return
        reference = {n: t.shape for n, t in self.u0.items()}
        for position, client in enumerate(self.federation.clients):
            network = self.network(position)
            shapes = {n: t.shape for n, t in network.read(network.split.shared).items()}
            check_same_shared(reference, shapes, client.id)


def client_weights(federation: Federation, weighting: Weighting) -> list[float]:
    """Every client's α_i; refused where they follow sizes that nothing says."""
    sizes = federation.sizes
    if sizes is not None:
        return weighting.alphas(list(map(int, sizes)))
    if weighting.weights == "samples":
        raise FedapmError(
            'engine.weights = "samples" needs every client\'s number of samples, which is not known without reading '
            "all of them; give sizes to Federation.lazy, or leave weights uniform."
        )
    return weighting.alphas([1] * len(federation))


def _known_sizes(federation: Federation) -> Sequence[int] | np.ndarray[Any, Any]:
    """How many training samples clients have; those of some, where not all are known."""
    lazy = federation.lazy_clients
    if (sizes := federation.sizes) is not None or lazy is None:
        return sizes if sizes is not None else []
    return [lazy.size(client) for client in lazy.sample(SIZED)]


def evaluated_clients(m: int, count: int | None) -> Sequence[int]:
    """Which of m clients are evaluated, in increasing order: all, or some that are the same in all runs.

    Args:
        m: The number of clients.
        count: How many are evaluated; all if None.
    """
    if count is None or count >= m:
        return range(m)
    # the same for every method, seed and round, so that scores are of the same clients
    return sorted(random.numpy_generator(0, "evaluated clients", m).choice(m, size=count, replace=False).tolist())


def as_network_takes(federation: Federation, module: nn.Module, device: torch.device) -> Federation:
    """The federation with whole-number inputs as floats, if the network takes floats and not whole numbers."""
    if not any(not t.is_floating_point() for t in federation[0].train.inputs):
        return federation
    inputs = federation[0].train[:2].to(device).inputs
    training = module.training
    with torch.no_grad(), random.seeded_globally(device, 0, "trial"):
        module.eval()
        floats = not _accepts(module, inputs) and _accepts(module, tuple(t.float() for t in inputs))
        module.train(training)
    if not floats:
        return federation
    logger.info("the network takes floats: whole-number inputs are converted.")
    return federation.with_float_inputs()


def _accepts(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> bool:
    try:
        module(*inputs)
    except Exception:  # whatever a network of the user's own raises
        return False
    return True


def picture_order(module: nn.Module) -> torch.memory_format | None:
    """The order of pictures in memory that a network's convolutions like best; None where it has none."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    if not convolutions:
        return None
    # with channels last, the gradient of a strided 1×1 convolution of few channels writes outside its memory (seen with
    # torch 2.13 on a CPU) and brings the process down
    unsafe = any(
        max(part.stride) > 1 and max(part.kernel_size) == 1 and (part.in_channels // part.groups) % 8
        for part in convolutions
    )
    return torch.contiguous_format if unsafe else torch.channels_last


def default_loss(federation: Federation) -> Loss:
    """Cross-entropy for classes, mean squared error for quantities."""
    if federation[0].train.classified:
        return nn.functional.cross_entropy
    return squared_error


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean squared error; targets in a row stand for outputs in a column, nothing is ever broadcast."""
    if outputs.numel() != targets.numel():
        raise FedapmError(
            f"the network gives outputs of shape {tuple(outputs.shape)} for targets of {tuple(targets.shape)}."
        )
    return nn.functional.mse_loss(outputs, targets.reshape(outputs.shape))


def model_factory(model: Model) -> tuple[Callable[[ClientData], nn.Module], bool]:
    """A function that makes a client's network, and whether networks differ from client to client."""
    if isinstance(model, nn.Module):
        template = model
        return (lambda _: deepcopy(template)), False
    if not callable(model):
        raise FedapmError(f"a model is an nn.Module or a function that makes one, not {type(model).__name__}.")
    make: Callable[..., Any] = model
    required = [
        p
        for p in inspect.signature(make).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(required) > 1:
        raise FedapmError("a function that makes models takes nothing, or one client's data.")
    per_client = len(required) == 1

    def checked(client: ClientData) -> nn.Module:
        try:
            module = make(client) if per_client else make()
        except FedapmError:
            raise
        except Exception as error:
            if per_client and isinstance(error, TypeError):
                at = f" ({place(error)})" if place(error) else ""
                raise FedapmError(
                    f"the model function takes one argument, so it was called with a client's data, and failed{at}; "
                    "for one network for all give a function without arguments, as in lambda: Net(16)."
                ) from error
            raise FedapmError(f"the model function failed with {described(error)}") from error
        if not isinstance(module, nn.Module):
            raise FedapmError(f"the model function gave a {type(module).__name__}, not an nn.Module.")
        return deepcopy(module)

    return checked, per_client


def _check_built(module: nn.Module) -> None:
    """Refuse a network whose parameters have no values yet."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer) or tensor.is_meta:
            raise FedapmError(
                f"the network's {name!r} has no values yet; build lazy layers by one forward pass, and none on the "
                "meta device, before training."
            )


def _architecture(network: Network) -> str:
    """Equal for networks that differ in nothing but what is loaded into them."""
    shapes = [(n, tuple(t.shape)) for n, t in network.module.named_parameters()]
    return repr(
        (
            type(network.module),
            str(network.module),
            shapes,
            network.split,
            network.frozen_digest,
            _attributes(network.module),
        )
    )


def _attributes(module: nn.Module) -> str:
    """Equal for modules whose plain attributes are; an attribute that cannot be written down is like nothing else."""
    # a network may adapt its stages and steps to its other attributes, and a recurrent layer lists its weights twice
    usual = {*vars(nn.Module()), "stages", "forward_steps", "_flat_weights", "_flat_weight_refs", "_all_weights"}
    plain = [{k: v for k, v in vars(part).items() if k not in usual} for part in module.modules()]
    return repr(plain) if all(map(_written_whole, plain)) else str(id(module))


def _written_whole(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_written_whole, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_written_whole, value))
    return value is None or isinstance(value, (bool, int, float, str, bytes)) or inspect.isroutine(value)


def _device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("it holds shapes and no numbers")
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise FedapmError(f"the device {str(name)!r} cannot be used here ({reason}).") from None
    return device
