"""Task: one client's local problem f_i in one round, and everything a method may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedapm.core import random
from fedapm.core.moments import Moments
from fedapm.core.network import Loss, Network
from fedapm.core.objective import Objective, Prior, Prox, WeightDecay, l2_gradient, l2_penalty
from fedapm.core.per_sample import Protection
from fedapm.core.samples import Samples
from fedapm.core.solver import SGD, SGDConfig, SolveStats
from fedapm.core.stopping import Epochs, StopRule, UntilStationary
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError

__all__ = ["Epochs", "LocalTask", "Prox", "SGDConfig", "SolveStats", "StopRule", "Task", "UntilStationary"]


class Task(Protocol):
    """f_i(v_i, u): a client's local problem, and everything a method may ask of it.

    The same questions have answers for one client (:class:`LocalTask`) and, in the vectorized engine, for several side
    by side. Batches are only passed on from :meth:`batches` to :meth:`minimize` and :meth:`gradient`.
    """

    @property
    def alpha(self) -> Any:
        """α_i, the weight of this client in the sum of all f_i (in per-client units m·α_i, averaging 1)."""

    @property
    def lr_factor(self) -> float:
        """Where the learning-rate schedule stands in this round."""

    @property
    def log(self) -> list[SolveStats]:
        """What the solver did, call by call."""

    @property
    def classified(self) -> bool:
        """Whether the targets are classes rather than quantities."""

    @property
    def network(self) -> Network:
        """The network its models are computed with."""

    @property
    def solver(self) -> SGDConfig:
        """How it is trained."""

    def streams(self, purpose: str) -> list[torch.Generator]:
        """A random stream of this round for each client, one or several; always on the CPU."""

    def minimize(
        self,
        start: Vec,
        fixed: Vec | None = None,
        *,
        weight: Any = None,
        linear: Vec | None = None,
        prox: Prox | None = None,
        stop: StopRule | None = None,
        lr: float | None = None,
        batch: Any = None,
        loss: Loss | None = None,
    ) -> Vec:
        """Minimize weight·f + ⟨linear, p⟩ + prox over the parameters named in ``start``.

        Args:
            start: Where the search begins; its names are what is trained.
            fixed: The values of other parameters. What is in neither keeps its value in the network (frozen ones).
            weight: The factor of f; 1 in per-client units if not given.
            linear: The linear term, such as a dual variable.
            prox: The proximal term.
            stop: When to stop; after the solver's epochs if not given.
            lr: Another step size than the solver's.
            batch: One batch instead of all local data; an epoch is then one step.
            loss: Another loss than the network's.

        Returns:
            The parameters found.
        """

    def batches(self, epochs: int | None = None) -> Iterator[Any]:
        """The mini-batches of some epochs, for methods whose step is not a plain one."""

    def each_batch(
        self,
        step: Callable[..., tuple[Vec, ...]],
        *start: Vec,
        epochs: int | None = None,
        share: float | None = None,
    ) -> tuple[Vec, ...]:
        """Vectors after a step of the method's own on each mini-batch.

        A client that has no more batches keeps its vectors while others go on.

        Args:
            step: Of a batch and the vectors, the new vectors; it draws nothing and keeps nothing else.
            start: Where the vectors begin.
            epochs: How often all local data is gone through; the solver's if not given.
            share: One pass over a random part of the local data instead, of this share.

        Returns:
            The vectors after the last batch.
        """

    def repeat(self, step: Callable[[Vec], Vec], start: Vec, most: Any, settled: Callable[[Vec, Vec], Any]) -> Vec:
        """A vector after some repetitions of a step; a client that is done keeps it while others go on.

        Args:
            step: Of the vector, the new one.
            start: Where it begins.
            most: How often at most, a number or one for each client.
            settled: Of the vector before and after a step, whether there is nothing left to do.
        """

    def class_counts(self, classes: int) -> Vec:
        """How many training samples each class has, in one tensor."""

    def step_size(self, lr: float | None = None) -> float:
        """The step size in this round."""

    def path_length(self, lr: float | None = None, epochs: int | None = None) -> float:
        """η·K̄ in this round: the step size times the clients' mean number of steps; the solver's if not given."""

    def gradient(self, at: Vec, fixed: Vec | None = None, batch: Any = None) -> Vec:
        """∇f_i at a point, in the parameters named in ``at``, on all local data or on one batch."""

    def value(self, *parts: Vec) -> float:
        """f_i at a point, on all local data."""


@dataclass
class LocalTask:
    """One client's problem.

    It is the mean loss of a client's model on its training data, plus λ/2 of its squared norm and λ₀/2 of its personal
    part's squared distance from the start.
    """

    network: Network
    train: Samples
    solver: SGDConfig
    seed: int
    client: int
    round: int
    alpha: float = 1.0
    """α_i, the weight of this client in the sum of all f_i (in per-client units m·α_i, averaging 1)."""
    unit: float = 1.0
    """The weight of f_i in methods that weigh clients on the server: 1, or 1/m in the paper's units."""
    mean_batches: float = 1.0
    """Mean over all clients of the batches in an epoch."""
    lr_factor: float = 1.0
    """Where the learning-rate schedule stands in this round."""
    v0: Vec = field(default_factory=Vec)
    """Where the personal parameters started, the centre of their prior."""
    log: list[SolveStats] = field(default_factory=list)
    """What the solver did, call by call."""
    protection: Protection | None = None
    """What is done to the gradients of single samples, where these are protected."""
    moments: dict[str, Moments] = field(default_factory=dict)
    """What the optimizer keeps, by phase: the number of the call, or the parameters that a method trains batch by
    batch. What is there already is gone on with."""

    def __post_init__(self) -> None:
        self._batches = random.torch_generator(self.seed, "batches", self.client, self.round)

    def minimize(
        self,
        start: Vec,
        fixed: Vec | None = None,
        *,
        weight: float | None = None,
        linear: Vec | None = None,
        prox: Prox | None = None,
        stop: StopRule | None = None,
        lr: float | None = None,
        batch: Samples | None = None,
        loss: Loss | None = None,
    ) -> Vec:
        """Minimize weight·f + ⟨linear, p⟩ + prox by SGD over the parameters p named in ``start``.

        Args:
            start: Where p starts.
            fixed: The values of other parameters. Those in neither keep the value they have in the network, as frozen
                ones do.
            weight: The weight of f; 1 in per-client units if not given.
            linear: The linear term.
            prox: The proximal term.
            stop: When to stop; after the solver's epochs if not given.
            lr: The step size before the schedule; the solver's if not given.
            batch: One batch to use instead of all local data; an epoch is then one step.
            loss: Another loss of the network's outputs and the targets.

        Returns:
            The new p.
        """
        if not start:
            return start
        self._check_protected(isinstance(stop, UntilStationary) or batch is not None or loss is not None)
        self.network.load(start, fixed or Vec())
        stop = stop or Epochs(self.solver.epochs)
        weight = self.unit if weight is None else weight
        terms = Objective(weight, self.decay(start.names), linear, prox, self.prior(start.names))
        descent = SGD(
            self.network,
            self.train if batch is None else batch,
            start.names,
            terms,
            lr=self.step_size(lr),
            momentum=self.solver.momentum,
            batch_size=self.solver.batch_size if batch is None else 0,
            stream=self._batches,
            loss=loss,
            dropout=self.solver.dropout_v or 0.0,
            held_out=self._held_out(start.names) if batch is None and isinstance(stop, Epochs) else None,
            protection=self.protection,
            config=self.solver,
            moments=self._moments(start.names, batch is None),
        )
        call = len(self.log)
        with random.seeded_globally(self.network.device, self.seed, "forward", self.client, self.round, call):
            solved = descent.run(stop)
        share = 1.0 if batch is None else len(batch) / len(self.train)
        self.log.append(replace(solved, epochs=solved.epochs * share))
        return self.network.read(start.names)

    def _moments(self, names: tuple[str, ...], whole: bool) -> Moments:
        """What the optimizer goes on with: nothing in a new phase, the last step's means in a single step of AdamW."""
        if not whole and not self.solver.adaptive:
            return Moments()
        return self.moments.setdefault(str(len(self.log)) if whole else ",".join(names), Moments())

    def streams(self, purpose: str) -> list[torch.Generator]:
        """A random stream of this round for the client."""
        return [random.torch_generator(self.seed, purpose, self.client, self.round)]

    def _check_protected(self, looks: bool = True) -> None:
        """Refuse to look at the data in a way that no noise protects."""
        if self.protection is not None and looks:
            raise FedapmError(
                'privacy.level = "sample" protects plain steps of the solver for a fixed number of epochs; this method '
                "or measure looks at the data in another way."
            )

    @property
    def classified(self) -> bool:
        """Whether the targets are classes rather than quantities."""
        return self.train.classified

    def class_counts(self, classes: int) -> Vec:
        """How many training samples each class has, in one tensor."""
        return Vec({"counts": torch.bincount(self.train.targets, minlength=classes)})

    def each_batch(
        self,
        step: Callable[..., tuple[Vec, ...]],
        *start: Vec,
        epochs: int | None = None,
        share: float | None = None,
    ) -> tuple[Vec, ...]:
        """Vectors after a step of the method's own on each mini-batch; see :meth:`Task.each_batch`."""
        vectors = start
        for batch in self.batches(epochs) if share is None else self._sample_batches(share):
            vectors = step(batch, *vectors)
        return vectors

    def repeat(self, step: Callable[[Vec], Vec], start: Vec, most: float, settled: Callable[[Vec, Vec], bool]) -> Vec:
        """A vector after some repetitions of a step; see :meth:`Task.repeat`."""
        vector = start
        for _ in range(int(most)):
            before, vector = vector, step(vector)
            if settled(before, vector):
                break
        return vector

    def batches(self, epochs: int | None = None) -> Iterator[Samples]:
        """The mini-batches of some epochs, for methods whose step is not a plain one."""
        self._check_protected()
        for _ in range(self.solver.epochs if epochs is None else epochs):
            yield from self.train.shuffled(self.solver.batch_size or len(self.train), self._batches)

    def _sample_batches(self, share: float) -> Iterator[Samples]:
        """The mini-batches of one pass over a random part of the local data."""
        self._check_protected()
        count = part_size(share, len(self.train))
        part = torch.randperm(len(self.train), generator=self._batches)[:count].to(self.train.targets.device)
        yield from self.train[part].shuffled(self.solver.batch_size or count, self._batches)

    def step_size(self, lr: float | None = None) -> float:
        """The step size in this round."""
        return (self.solver.lr if lr is None else lr) * self.lr_factor

    def path_length(self, lr: float | None = None, epochs: int | None = None) -> float:
        """η·K̄ in this round: the step size times the clients' mean number of steps; the solver's if not given."""
        passes = self.solver.epochs if epochs is None else epochs
        return self.solver.path_length(self.step_size(lr), passes, self.mean_batches)

    def gradient(self, at: Vec, fixed: Vec | None = None, batch: Samples | None = None) -> Vec:
        """∇f_i at a point, in the parameters named in ``at``, on all local data or on one batch."""
        self._check_protected()
        self.network.load(at, fixed or Vec())
        _, gradient = self.network.gradient(at.names, self.train if batch is None else batch)
        gradient = gradient + l2_gradient(self.decay(at.names), at)
        prior = self.prior(at.names)
        return gradient if prior is None else prior.added(gradient, at)

    def value(self, *parts: Vec) -> float:
        """f_i at a point, on all local data."""
        self.network.load(*parts)
        loss, _ = self.network.gradient((), self.train)
        priors = ((prior, part) for part in parts if (prior := self.prior(part.names)) is not None)
        return (
            loss
            + sum(l2_penalty(self.decay(part.names), part) for part in parts)
            + sum(prior.penalty(part) for prior, part in priors)
        )

    def decay(self, names: Sequence[str]) -> WeightDecay:
        """λ of some parameters."""
        return self.solver.decay(names, self.network.split.personal)

    def prior(self, names: Sequence[str]) -> Prior | None:
        """The prior of the personal ones among some parameters; None where there is none."""
        return self.solver.prior(names, self.v0)

    def _held_out(self, names: Sequence[str]) -> Tensor | None:
        """The positions of the samples that a phase is judged by; the same in all of a client's rounds."""
        if len(self.train) < 2 or not self.solver.stops_early(names, self.network.split.personal):
            return None
        self._check_protected()
        return judges(self.train, self.solver.validation_v or 0.0, self.seed, self.client)


def part_size(share: float, count: int) -> int:
    """How many samples a share of them is, at least one."""
    return max(1, round(share * count))


def judges(train: Samples, share: float, seed: int, client: int) -> Tensor:
    """The positions of the samples that a client's personal phase is judged by.

    Args:
        train: Its training data, two samples or more.
        share: How many of them, as a share.
        seed: The run's seed.
        client: The client's position.
    """
    count, purpose = len(train), "validation of the personal phase"
    if train.belong_together:
        draws = random.numpy_generator(seed, purpose, client)
        return torch.as_tensor(train.held_out(share, draws)).to(train.targets.device)
    stream = random.torch_generator(seed, purpose, client)
    chosen = min(part_size(share, count), count - 1)
    return torch.randperm(count, generator=stream)[:chosen].sort().values.to(train.targets.device)
