"""The local solver: mini-batch SGD on α·f plus a linear and a proximal term, and when it stops.

The terms are given as data, so the whole step is p ← p − lr·(α·(∇f + λp) + ℓ + w·(p − c)), done in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from fedapm.core.batched import PerClient
from fedapm.core.network import Loss, Network, PhaseData
from fedapm.core.ranges import check_ranges
from fedapm.core.samples import Samples
from fedapm.core.vec import Vec

WeightDecay = float | Mapping[str, float]
"""λ, one for all parameters or one for each."""


def l2_penalty(decay: WeightDecay, p: Vec) -> float:
    """λ/2·‖p‖²."""
    if isinstance(decay, Mapping):
        return sum(l2_penalty(decay[n], Vec({n: t})) for n, t in p.items())
    return 0.5 * decay * p.sq()


def l2_gradient(decay: WeightDecay, p: Vec) -> Vec:
    """λ·p, the gradient of the penalty."""
    return Vec({n: decay[n] * t for n, t in p.items()}) if isinstance(decay, Mapping) else decay * p


@dataclass(frozen=True)
class SGDConfig:
    """Mini-batch SGD as every method uses it."""

    lr: PositiveFloat = 0.1
    """Step size."""
    epochs: NonNegativeInt = 3
    """Passes over the local data in each phase."""
    batch_size: NonNegativeInt = 50
    """Samples in a step; 0 takes all of a client's data at once."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of the last step's direction that is kept."""
    weight_decay: NonNegativeFloat = 0.0
    """λ: f_i is the mean loss plus λ/2·‖parameters‖²."""
    lr_schedule: Literal["constant", "exponential", "cosine"] = "constant"
    """How the step size changes from round to round."""
    lr_decay: Annotated[float, Gt(0), Le(1)] = 0.98
    """Factor a round under the exponential schedule."""
    weight_decay_v: NonNegativeFloat | None = None
    """λ of the parameters that stay with the client; the same as of all others if not given."""

    def __post_init__(self) -> None:
        check_ranges(self, "solver")

    def decay(self, names: Sequence[str], personal: Sequence[str]) -> WeightDecay:
        """λ of some parameters: one number where it is the same for all of them."""
        if self.weight_decay_v is None:
            return self.weight_decay
        each = {n: self.weight_decay_v if n in personal else self.weight_decay for n in names}
        return each if len(set(each.values())) > 1 else next(iter(each.values()), 0.0)

    def path_length(self, lr: float, epochs: int, mean_batches: float) -> float:
        """η·K̄: the step size times the mean number of steps, as long as a path along a gradient of length one."""
        return lr * max(epochs * mean_batches, 1.0) / (1 - self.momentum)

    def schedule(self, done: int, rounds: int) -> float:
        """The factor on the step size after ``done`` of ``rounds`` rounds."""
        if self.lr_schedule == "exponential":
            return self.lr_decay**done
        if self.lr_schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(done / max(rounds, 1), 1.0)))
        return 1.0


@dataclass(frozen=True)
class Epochs:
    """Stop after a number of passes over the data."""

    count: int


@dataclass(frozen=True)
class UntilStationary:
    """Stop at a ξ-approximate solution: the squared norm of the objective's full local gradient is at most ξ."""

    xi: float
    max_epochs: int


StopRule = Epochs | UntilStationary


@dataclass(frozen=True)
class Prox:
    """The proximal term weight/2·‖p − centre‖²."""

    weight: float
    center: Vec


@dataclass(frozen=True)
class Objective:
    """What is minimised: weight·(f + λ/2·‖p‖²) + ⟨linear, p⟩ + prox."""

    weight: float
    weight_decay: WeightDecay = 0.0
    linear: Vec | None = None
    prox: Prox | None = None

    def slope(self, names: Sequence[str]) -> float | list[float]:
        """The factor of p in the gradient of all terms but f; one for each parameter where they differ."""
        pull = self.prox.weight if self.prox else 0.0
        if isinstance(self.weight_decay, Mapping):
            return [self.weight * self.weight_decay[n] + pull for n in names]
        return self.weight * self.weight_decay + pull

    def offset(self, names: tuple[str, ...]) -> list[Tensor] | None:
        """The constant part of that gradient, or None where it is zero."""
        constant = self.linear
        if self.prox is not None and self.prox.weight:
            pull = self.prox.weight * self.prox.center
            constant = constant - pull if constant is not None else -pull
        return None if constant is None else [constant[n] for n in names]

    def gradient(self, p: Vec, of_f: Vec) -> Vec:
        """The gradient of the whole objective at p, given that of f."""
        result = self.weight * (of_f + l2_gradient(self.weight_decay, p))
        if self.linear is not None:
            result = result + self.linear
        if self.prox is not None:
            result = result + self.prox.weight * (p - self.prox.center)
        return result


@dataclass(frozen=True)
class SolveStats:
    """What the solver did: epochs, mean loss of the last one, and under the ξ-rule ξ and what was achieved."""

    epochs: float
    loss: float | None
    xi: float | None = None
    residual: float | None = None
    steps: int = 0


Factor = float | list[float] | PerClient
"""A factor of all parameters, one for each parameter, or one for each client."""


@torch.no_grad()
def sgd_step(
    parameters: list[Tensor],
    grads: list[Tensor],
    *,
    lr: float,
    weight: float | PerClient,
    slope: Factor,
    offset: list[Tensor] | None,
    momentum: float = 0.0,
    velocity: list[Tensor] | None = None,
) -> None:
    """One step p ← p − lr·(weight·∇f + slope·p + offset), in place, for one client or for several side by side.

    Args:
        parameters: What is trained; with several clients their first dimension counts clients.
        grads: ∇f; may be overwritten.
        lr: The step size.
        weight: The factor of ∇f.
        slope: The factor of p in the gradient of all other terms.
        offset: The constant part of that gradient; None where it is zero.
        momentum: The share of the last step's direction that is kept.
        velocity: The direction of the last step, where there is momentum; updated in place.
    """
    if isinstance(weight, PerClient):
        grads, weight = _scaled(grads, weight), 1.0
    if not momentum:
        if isinstance(slope, PerClient):
            torch._foreach_sub_(parameters, _scaled(parameters, lr * slope))
        elif isinstance(slope, list):
            torch._foreach_mul_(parameters, [1 - lr * one for one in slope])
        elif slope:
            torch._foreach_mul_(parameters, 1 - lr * slope)
        torch._foreach_add_(parameters, grads, alpha=-lr * weight)
        if offset is not None:
            torch._foreach_add_(parameters, offset, alpha=-lr)
        return
    assert velocity is not None
    if weight != 1:
        torch._foreach_mul_(grads, weight)
    if isinstance(slope, PerClient):
        torch._foreach_add_(grads, _scaled(parameters, slope))
    elif isinstance(slope, list):
        torch._foreach_add_(grads, torch._foreach_mul(parameters, slope))
    elif slope:
        torch._foreach_add_(grads, parameters, alpha=slope)
    if offset is not None:
        torch._foreach_add_(grads, offset)
    torch._foreach_mul_(velocity, momentum)
    torch._foreach_add_(velocity, grads)
    torch._foreach_add_(parameters, velocity, alpha=-lr)


def _scaled(tensors: list[Tensor], factor: PerClient) -> list[Tensor]:
    return [tensor * factor.over(tensor) for tensor in tensors]


class SGD:
    """SGD on some of a network's parameters, in place."""

    def __init__(
        self,
        network: Network,
        samples: Samples,
        names: tuple[str, ...],
        terms: Objective,
        *,
        lr: float,
        momentum: float,
        batch_size: int,
        stream: torch.Generator,
        loss: Loss | None = None,
    ) -> None:
        self.network, self.samples, self.names, self.terms = network, samples, names, terms
        self.lr, self.momentum, self.stream, self.loss = lr, momentum, stream, loss or network.loss
        self._local = PhaseData(samples, network.module)
        self.batch_size = batch_size or max(len(samples), 1)
        self._offset, self._slope = terms.offset(names), terms.slope(names)
        self._velocity: list[Tensor] = []
        self._steps = 0

    def run(self, stop: StopRule) -> SolveStats:
        """Step until the rule says stop, or until the loss is no longer a number."""
        loss: float | None = None
        passes = stop.count if isinstance(stop, Epochs) else stop.max_epochs
        self._local = self.network.local(self.names, self.samples, passes)
        if isinstance(stop, Epochs):
            for done in range(stop.count):
                loss = self._epoch()
                if not math.isfinite(loss):
                    return SolveStats(done + 1, loss, steps=self._steps)
            return SolveStats(stop.count, loss, steps=self._steps)
        done, residual = 0, self.residual()
        while residual > stop.xi and done < stop.max_epochs:
            loss = self._epoch()
            done, residual = done + 1, self.residual()
        return SolveStats(done, loss, stop.xi, residual, self._steps)

    def residual(self) -> float:
        """The squared norm of the whole objective's gradient on all local data."""
        _, of_f = self.network.gradient(self.names, self.samples, self._local)
        return self.terms.gradient(self.network.read(self.names), of_f).sq()

    def _epoch(self) -> float:
        parameters = self.network.trainable(self.names)
        self.network.module.train()
        losses = []
        for batch in self._local.samples.shuffled(self.batch_size, self.stream):
            loss = self.loss(self._local.call(*batch.inputs), batch.targets)
            grads = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
            if self.momentum and not self._velocity:
                self._velocity = [torch.zeros_like(p) for p in parameters]
            sgd_step(
                parameters,
                list(grads),
                lr=self.lr,
                weight=self.terms.weight,
                slope=self._slope,
                offset=self._offset,
                momentum=self.momentum,
                velocity=self._velocity,
            )
            self._steps += 1
            losses.append(loss.detach() * len(batch))
        return torch.stack(losses).sum().item() / len(self.samples)
