"""Gradients of single samples, clipped and noised before they are added up.

    ∇f ≈ (1/B)·(Σ clip(∇f_j, C) + N(0, σ²C²))        over a random part of the samples, each with probability B/n

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy. CCS 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedapm.core.network import Loss
from fedapm.core.recurrent import written_out
from fedapm.core.samples import Samples
from fedapm.errors import FedapmError


class Protection(Protocol):
    """How much single samples are protected, and where the randomness for it comes from."""

    @property
    def clip(self) -> float:
        """C, the norm that a sample's gradient has at most."""

    @property
    def deviation(self) -> float:
        """σ·C."""

    def chosen(self, count: int, rate: float, stream: torch.Generator) -> Tensor:
        """Which of some samples take part in a step, each with the same probability."""

    def noise(self, like: Tensor, stream: torch.Generator) -> Tensor:
        """Normal noise of deviation σ·C."""


def noised_gradients(
    module: nn.Module,
    parameters: dict[str, Tensor],
    loss: Loss,
    samples: Samples,
    expected: float,
    protection: Protection,
    stream: torch.Generator,
) -> tuple[list[Tensor], float]:
    """The gradient of one step, in the order of the parameters, and the sum of the samples' losses.

    Args:
        module: The network.
        parameters: What is trained, by name.
        loss: The loss of outputs and targets.
        samples: Those that take part in the step; there may be none.
        expected: B, how many were expected.
        protection: What is done to gradients.
        stream: Where keyed randomness is drawn from.
    """
    sums = [torch.zeros_like(p) for p in parameters.values()]
    value = 0.0
    if len(samples):

        def one(values: dict[str, Tensor], inputs: Sequence[Tensor], target: Tensor) -> Tensor:
            outputs = functional_call(module, values, tuple(x.unsqueeze(0) for x in inputs))
            return loss(outputs, target.unsqueeze(0))

        each = vmap(grad_and_value(one), in_dims=(None, 0, 0), randomness="different")
        values = {name: p.detach() for name, p in parameters.items()}
        with written_out(module):
            grads, losses = each(values, tuple(samples.inputs), samples.targets)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factors = (protection.clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
        # a sample without a finite gradient adds nothing: a sum that is not finite would give it away
        known = torch.isfinite(norms)
        factors = torch.where(known, factors, 0.0)
        finite = {name: torch.where(_along(known, g), g, 0.0) for name, g in grads.items()}
        sums = [torch.einsum("b,b...->...", factors, finite[name]) for name in parameters]
        value = float(losses.sum())
    return [(total + protection.noise(total, stream)) / expected for total in sums], value


def _along(flags: Tensor, like: Tensor) -> Tensor:
    """One flag a sample, in the shape of what there is for each."""
    return flags.view(-1, *[1] * (like.dim() - 1))


def check_protectable(module: nn.Module) -> None:
    """Refuse a network in which a sample's gradient depends on the others of its batch.

    Args:
        module: The network.

    Raises:
        FedapmError: If it has batch normalization.
    """
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            raise FedapmError(
                f'privacy.level = "sample" needs gradients of single samples, but {name} ({type(part).__name__}) mixes '
                "the samples of a batch; use group or layer normalization."
            )
