"""What a solver keeps from step to step: AdamW's running means of the gradient, or the velocity of momentum."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999
"""The shares of the past in the running means of the gradient and of its square."""
EPSILON = 1e-8
"""Keeps the step finite where the gradient is zero."""


@dataclass
class Moments:
    """Running means of one phase; empty before its first step."""

    first: list[Tensor] = field(default_factory=list)
    """AdamW: the mean of the gradient. Momentum: the direction of the last step."""
    second: list[Tensor] = field(default_factory=list)
    """AdamW: the mean of the gradient's square."""
    steps: int = 0
    """AdamW: how many gradients they are the means of."""

    @torch.no_grad()
    def direction(self, grads: list[Tensor]) -> list[Tensor]:
        """AdamW's step for a step size of one: the mean gradient, each coordinate divided by its usual size.

        Args:
            grads: The gradients of this step.

        Returns:
            The step, without its sign.
        """
        if not self.first:
            self.first, self.second = ([torch.zeros_like(g) for g in grads] for _ in range(2))
        self.steps += 1
        torch._foreach_lerp_(self.first, grads, 1 - BETA1)
        torch._foreach_mul_(self.second, BETA2)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - BETA2)
        sizes = torch._foreach_sqrt(self.second)
        torch._foreach_div_(sizes, float((1 - BETA2**self.steps) ** 0.5))
        torch._foreach_add_(sizes, EPSILON)
        means = torch._foreach_div(self.first, 1 - BETA1**self.steps)
        return list(torch._foreach_div(means, sizes))

    def velocity(self, parameters: list[Tensor]) -> list[Tensor]:
        """The direction of the last step under momentum; it is changed in place by the next."""
        if not self.first:
            self.first = [torch.zeros_like(p) for p in parameters]
        return self.first


@torch.no_grad()
def clip(grads: list[Tensor], norm: float) -> None:
    """Shorten a gradient to a length, in place, where it is longer."""
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, torch.clamp(norm / (length + 1e-6), max=1.0))


@torch.no_grad()
def clip_each(grads: list[Tensor], norm: float) -> None:
    """The same for every client of several: a gradient has a row for each."""
    lengths = torch.stack([grad.flatten(1).square().sum(1) for grad in grads]).sum(0).sqrt()
    factors = torch.clamp(norm / (lengths + 1e-6), max=1.0)
    for grad in grads:
        grad *= factors.view(-1, *[1] * (grad.dim() - 1))
