"""Losses of several clients at once: every client's mean over its own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fedapm.core.batched import NotBatchable
from fedapm.core.network import Loss, OwnLoss
from fedapm.simulation.problem import squared_error

FEW = 32
"""Classes up to which the logarithms of their probabilities are computed class by class."""


class BatchedLoss(Protocol):
    """Every client's loss, of the network's outputs."""

    def __call__(self, outputs: Any) -> Tensor:
        """One loss a client."""

    def slope(self, outputs: Any) -> tuple[Tensor, Tensor]:
        """The losses, and the gradient of their sum in the outputs."""


def mean_over_samples(loss: Loss, targets: Tensor) -> bool:
    """Whether a loss is known to be a mean over samples, so that some of them can be given no weight."""
    classes = targets.dim() == 2 and not targets.is_floating_point()
    return loss is squared_error or (loss is functional.cross_entropy and classes)


def losses(loss: Loss, targets: Tensor, weights: Tensor | None) -> BatchedLoss:
    """The losses on one batch of each client; weights say how much each sample counts where batches differ in size."""
    if loss is functional.cross_entropy and targets.dim() == 2 and not targets.is_floating_point():
        return CrossEntropy(targets, weights)
    return Plain(loss, targets, weights)


@dataclass(frozen=True)
class Plain:
    """Any loss, differentiated by autograd."""

    loss: Loss
    targets: Tensor
    weights: Tensor | None

    def __call__(self, outputs: Any) -> Tensor:
        """One loss a client."""
        if self.loss is squared_error and isinstance(outputs, Tensor) and outputs.numel() == self.targets.numel():
            squares = (outputs.reshape(self.targets.shape) - self.targets).square()
            return _mean(squares.reshape(*self.targets.shape[:2], -1).mean(-1), self.weights)
        if self.weights is not None:
            raise NotBatchable("clients' batches differ in size, and the loss is not known to be a mean over samples")
        losses: Tensor
        if isinstance(self.loss, OwnLoss) and self.loss.own.batched:
            losses = torch.vmap(self.loss.function)(outputs, self.targets, *self.loss.own.values())
        else:
            losses = torch.vmap(self.loss)(outputs, self.targets)
        return losses

    def slope(self, outputs: Any) -> tuple[Tensor, Tensor]:
        """The losses, and the gradient of their sum in the outputs."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_(True)
            losses = self(leaf)
            (slope,) = torch.autograd.grad(losses.sum(), [leaf])
        return losses.detach(), slope


@dataclass(frozen=True)
class CrossEntropy:
    """−log of the probability of the right class, outputs being (clients, samples, classes)."""

    targets: Tensor
    weights: Tensor | None

    def __call__(self, outputs: Any) -> Tensor:
        """One loss a client."""
        flat = functional.cross_entropy(outputs.flatten(0, 1), self.targets.flatten(), reduction="none")
        return _mean(flat.view(self.targets.shape), self.weights)

    def slope(self, outputs: Any) -> tuple[Tensor, Tensor]:
        """The losses, and (softmax − one-hot) of each sample, weighed."""
        right = self.targets.unsqueeze(2)
        logs = log_softmax(outputs)
        dy = logs.exp()
        dy.scatter_add_(2, right, dy.new_full((), -1.0).expand(right.shape))
        if self.weights is None:
            dy *= 1 / self.targets.shape[1]
        else:
            dy *= self.weights.to(dy.dtype).unsqueeze(2)
        return _mean(-logs.gather(2, right).squeeze(2), self.weights), dy


def log_softmax(outputs: Tensor) -> Tensor:
    """The logarithms of the classes' probabilities, the classes being the last dimension.

    Along a short last dimension a processor takes many times as long as along the first one, where it computes the
    samples of a class together.

    Args:
        outputs: The network's, (clients, samples, classes).

    Returns:
        A tensor of its own, of the same shape; few classes lie in memory one after the other, as they were computed.
    """
    if outputs.shape[-1] > FEW:
        return torch.log_softmax(outputs, -1)
    by_class = outputs.permute(2, 0, 1).contiguous()
    return torch.log_softmax(by_class, 0).permute(1, 2, 0)


def _mean(each: Tensor, weights: Tensor | None) -> Tensor:
    return each.mean(1) if weights is None else (each * weights.to(each.dtype)).sum(1)
