"""The local solver: mini-batch SGD on α·f plus a linear and a proximal term, and when it stops.

The terms are given as data, so the whole step is p ← p − lr·(α·(∇f + λp) + ℓ + w·(p − c)), done in place. With AdamW
its direction d stands in the place of ∇f, and nothing else changes: the terms are not divided by the gradient's size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from fedapm.core.batched import PerClient
from fedapm.core.first_order import first_order
from fedapm.core.moments import Moments, clip
from fedapm.core.network import Loss, Network, PhaseData
from fedapm.core.objective import Objective, Prior, Prox, WeightDecay
from fedapm.core.per_sample import Protection, noised_gradients
from fedapm.core.precision import Precision, computed_in
from fedapm.core.ranges import check_ranges
from fedapm.core.samples import Samples
from fedapm.core.stopping import Epochs, StopRule, UntilStationary, after_epochs, until_stationary, while_better
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError

__all__ = [
    "SGD", "Epochs", "Objective", "Prior", "Prox", "SGDConfig", "SolveStats", "StopRule", "UntilStationary", "sgd_step",
]  # fmt: skip


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
    prior_v: NonNegativeFloat | None = None
    """λ₀: f_i has a further term λ₀/2·‖v − v⁰‖², where v are the parameters that stay with the client and v⁰ is where
    they started; 0 if not given."""
    bias_v: Literal["drawn", "frequencies"] | None = None
    """Where the bias of an output layer that stays with the client starts: as the network draws it (`drawn`), or at the
    logarithm of how often each class occurs in the client's training data (`frequencies`), which is right where
    clients differ only in that; `drawn` if not given."""
    dropout_v: Annotated[float, Ge(0), Lt(1)] | None = None
    """Dropout rate on the inputs of the layers that stay with the client, while these are trained; 0 if not given."""
    validation_v: Annotated[float, Ge(0), Lt(1)] | None = None
    """Share of a client's training samples that a phase is judged by which trains only what stays with the client: it
    ends when an epoch does not lower their loss, at the best epoch's parameters; no early stopping if not given."""
    optimizer: Literal["sgd", "adamw"] | None = None
    """How a step follows the gradient: `sgd`, with the momentum above, or `adamw`, whose weight decay, linear and
    proximal terms stand beside the scaled gradient and are not scaled; `sgd` if not given."""
    clip_norm: PositiveFloat | None = None
    """Longest gradient of the mean loss in a step; a longer one is shortened. No bound if not given."""
    warmup: NonNegativeInt | None = None
    """Rounds in which the step size rises evenly to its full value; none if not given."""
    accumulate: PositiveInt | None = None
    """Parts in which the gradient of a batch is computed and added up: the same step in less memory; 1 if not given."""
    precision: Precision | None = None
    """What networks are trained in: `float32`, or `bfloat16` where the device has it (parameters, steps and scores stay
    in float32); `float32` if not given."""
    keep_state: bool | None = None
    """Whether a phase goes on with the optimizer's running means of the client's last round, which then are a part of
    what the client keeps: for AdamW twice the size of all it trains; each phase begins anew if not given."""

    def __post_init__(self) -> None:
        check_ranges(self, "solver")
        if self.adaptive and self.momentum:
            raise FedapmError('solver.momentum is for optimizer = "sgd"; AdamW has a running mean of its own.')
        if self.keep_state and not (self.adaptive or self.momentum):
            raise FedapmError('solver.keep_state has nothing to keep; set solver.optimizer = "adamw" or a momentum.')

    @property
    def adaptive(self) -> bool:
        """Whether steps are AdamW's."""
        return self.optimizer == "adamw"

    @property
    def one_by_one(self) -> str | None:
        """The setting that lets clients be trained only one by one, in words; None where there is none."""
        reasons = {
            "AdamW's running means (solver.optimizer)": self.adaptive,
            "adding up gradients (solver.accumulate)": (self.accumulate or 1) > 1,
            "bfloat16 (solver.precision)": self.precision == "bfloat16",
            "what the optimizer keeps between rounds (solver.keep_state)": bool(self.keep_state),
        }
        return next((f"{what} is a matter of one client" for what, so in reasons.items() if so), None)

    def decay(self, names: Sequence[str], personal: Sequence[str]) -> WeightDecay:
        """λ of some parameters: one number where it is the same for all of them."""
        if self.weight_decay_v is None:
            return self.weight_decay
        each = {n: self.weight_decay_v if n in personal else self.weight_decay for n in names}
        return each if len(set(each.values())) > 1 else next(iter(each.values()), 0.0)

    def path_length(self, lr: float, epochs: int, mean_batches: float) -> float:
        """η·K̄: the step size times the mean number of steps, as long as a path along a gradient of length one."""
        return lr * max(epochs * mean_batches, 1.0) / (1 - self.momentum)

    def prior(self, names: Sequence[str], v0: Vec) -> Prior | None:
        """The prior of those among some parameters that start at v⁰; None where there is none."""
        center = v0.only(n for n in names if n in v0)
        return Prior(self.prior_v, center) if self.prior_v and center else None

    def stops_early(self, names: Sequence[str], personal: Sequence[str]) -> bool:
        """Whether a phase that trains these parameters is judged by held-out samples: all are personal."""
        return bool(self.validation_v) and set(names) <= set(personal)

    def schedule(self, done: int, rounds: int) -> float:
        """The factor on the step size after ``done`` of ``rounds`` rounds."""
        rise = min((done + 1) / (self.warmup + 1), 1.0) if self.warmup else 1.0
        if self.lr_schedule == "exponential":
            return rise * self.lr_decay**done
        if self.lr_schedule == "cosine":
            return rise * 0.5 * (1 + math.cos(math.pi * min(done / max(rounds, 1), 1.0)))
        return rise


@dataclass(frozen=True)
class SolveStats:
    """What the solver did: epochs, mean loss of the last one, and under the ξ-rule ξ and what was achieved."""

    epochs: float
    loss: float | None
    xi: float | None = None
    residual: float | None = None
    steps: int = 0


Factor = Any
"""A factor of all parameters or a list with one for each; a factor is a number, or a PerClient for several clients."""


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
        if (pulls := _pulls(parameters, slope, lr)) is not None:
            torch._foreach_sub_(parameters, pulls)
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
    if (pulls := _pulls(parameters, slope, 1.0)) is not None:
        torch._foreach_add_(grads, pulls)
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


def _pulls(tensors: list[Tensor], slope: Any, lr: float) -> list[Tensor] | None:
    """lr·slope·p, where the slope has a value for each client; None where it has one for all."""
    slopes = slope if isinstance(slope, list) else [slope] * len(tensors)
    if not isinstance(slopes[0], PerClient):
        return None
    return [tensor * (lr * one).over(tensor) for tensor, one in zip(tensors, slopes, strict=True)]


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
        dropout: float = 0.0,
        held_out: Tensor | None = None,
        protection: Protection | None = None,
        config: SGDConfig | None = None,
        moments: Moments | None = None,
    ) -> None:
        """Prepare a search.

        Args:
            network: The network; its parameters are where the search starts.
            samples: The local data.
            names: The parameters that are trained.
            terms: What is minimized.
            lr: The step size.
            momentum: The share of the last step's direction that is kept.
            batch_size: Samples in a step; 0 takes all of them.
            stream: Draws the order of the samples.
            loss: Another loss than the network's.
            dropout: The dropout rate in front of the personal layers among those that are trained.
            held_out: The positions of the samples that epochs are judged by instead of being trained on.
            protection: What is done to the gradients of single samples, where these are protected.
            config: Which optimizer, and how gradients are computed; plain SGD if not given.
            moments: What the optimizer has kept from earlier steps; nothing if not given.
        """
        self.protection = protection
        self.config = config or SGDConfig()
        self.moments = moments or Moments()
        self.dropout, self.held_out = dropout, held_out
        self.network, self.samples, self.names, self.terms = network, samples, names, terms
        self.lr, self.momentum, self.stream, self.loss = lr, momentum, stream, loss or network.loss
        self._local = PhaseData(samples, network.module)
        self._judges: PhaseData | None = None
        self._best: tuple[Vec, Vec] = Vec(), Vec()
        self.batch_size = batch_size or max(len(samples), 1)
        self._offset, self._slope = terms.offset(names), terms.slope(names)
        self._steps = 0

    def run(self, stop: StopRule) -> SolveStats:
        """Step until the rule says stop, or until the loss is no longer a number."""
        if self.config.adaptive and isinstance(stop, UntilStationary):
            raise FedapmError(
                "the ξ-rule (algorithm.xi) measures the gradient that SGD follows; leave it out, or solver.optimizer."
            )
        passes = stop.count if isinstance(stop, Epochs) else stop.max_epochs
        self._local = self.network.local(self.names, self.samples, passes)
        with self.network.dropout(self.names, self.dropout):
            if isinstance(stop, UntilStationary):
                course = until_stationary(self, [float(stop.xi)], stop.max_epochs)
                return SolveStats(
                    course.epochs[0], course.losses[0], float(stop.xi), course.residuals[0], steps=self._steps
                )
            if self.held_out is None:
                course = after_epochs(self, 1, stop.count)
            else:
                self._hold_out(self.held_out)
                course = while_better(self, 1, stop.count)
                self.network.load(*self._best)
        return SolveStats(course.epochs[0], course.losses[0], steps=self._steps)

    def _hold_out(self, held_out: Tensor) -> None:
        """From now on epochs are on the other samples."""
        whole, rest = self._local.samples, torch.ones(len(self.samples), dtype=torch.bool)
        rest[held_out.cpu()] = False
        self._judges = PhaseData(whole[held_out], self._local.call)
        self._local = PhaseData(whole[rest.to(held_out.device)], self._local.call)

    def epoch(self) -> list[float]:
        """One pass over the data; the mean loss."""
        return [self._epoch() if self.protection is None else self._protected_epoch(self.protection)]

    def judged(self) -> list[float]:
        """The mean loss of the samples that are held out."""
        assert self._judges is not None
        loss, _ = self.network.gradient((), self._judges.samples, self._judges)
        return [loss]

    def remember(self, better: Sequence[bool]) -> None:
        """Keep the parameters as what the search ends with, if they are better."""
        if better[0]:
            self._best = self.network.read(self.names), self.network.buffers()

    def only(self, going: Sequence[bool]) -> None:
        """There is one client, which is still searching."""

    def residuals(self) -> list[float]:
        """The squared norm of the whole objective's gradient on all local data."""
        _, of_f = self.network.gradient(self.names, self.samples, self._local)
        return [self.terms.gradient(self.network.read(self.names), of_f).sq()]

    def _protected_epoch(self, protection: Protection) -> float:
        """As many steps as an epoch has, each on a random part of the samples."""
        parameters = dict(zip(self.names, self.network.trainable(self.names), strict=True))
        self.network.module.train()
        count, value, seen = len(self.samples), 0.0, 0
        expected = min(self.batch_size, count)
        for _ in range(math.ceil(count / expected)):
            chosen = protection.chosen(count, expected / count, self.stream).to(self.samples.targets.device)
            batch = self.samples[chosen]
            grads, loss = noised_gradients(
                self.network.module, parameters, self.loss, batch, expected, protection, self.stream
            )
            self._step(list(parameters.values()), grads)
            value, seen = value + loss, seen + len(batch)
        return value / max(seen, 1)

    def _epoch(self) -> float:
        parameters = self.network.trainable(self.names)
        self.network.module.train()
        losses = []
        with first_order():
            for batch in self._local.samples.shuffled(self.batch_size, self.stream):
                loss, grads = self._gradient(batch, parameters)
                if self.config.clip_norm is not None:
                    clip(grads, self.config.clip_norm)
                self._step(parameters, grads)
                losses.append(loss * len(batch))
        return torch.stack(losses).sum().item() / len(self._local.samples)

    def _step(self, parameters: list[Tensor], grads: list[Tensor]) -> None:
        sgd_step(
            parameters,
            self.moments.direction(grads) if self.config.adaptive else grads,
            lr=self.lr,
            weight=self.terms.weight,
            slope=self._slope,
            offset=self._offset,
            momentum=self.momentum,
            velocity=self.moments.velocity(parameters) if self.momentum else None,
        )
        self._steps += 1

    def _gradient(self, batch: Samples, parameters: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean loss of a batch and its gradient, computed in as many parts as the settings say."""
        size = -(-len(batch) // (self.config.accumulate or 1))
        if size >= len(batch):
            return self._part(batch, parameters)
        loss, sums = torch.zeros((), device=batch.targets.device), [torch.zeros_like(p) for p in parameters]
        for part in batch.batches(size):
            of_part, grads = self._part(part, parameters)
            loss = loss + of_part * (len(part) / len(batch))
            torch._foreach_add_(sums, grads, alpha=len(part) / len(batch))
        return loss, sums

    def _part(self, batch: Samples, parameters: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        with computed_in(self.config.precision, self.network.device):
            outputs = self._local.call(*batch.inputs)
        if self.config.precision == "bfloat16":
            outputs = outputs.float()
        loss = self.loss(outputs, batch.targets)
        grads = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
        return loss.detach(), list(grads)
