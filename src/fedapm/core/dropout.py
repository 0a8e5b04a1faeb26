"""Dropout with a mask that is cheap to draw on a CPU, and dropout in front of layers while they are trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 2**16
"""Each element uses 16 random bits, so the rate is a multiple of 1/65536."""


class Dropout(nn.Dropout):
    """Torch's dropout; on a CPU each random 64-bit number gives four elements of the mask."""

    def forward(self, values: Tensor) -> Tensor:
        """Set each value to 0 with probability p in training and scale the others to keep the mean."""
        return dropped(values, self.p) if self.training and not self.inplace else super().forward(values)


def dropped(values: Tensor, rate: float) -> Tensor:
    """Set each value to 0 with probability ``rate`` and scale the others to keep the mean.

    On a CPU each random 64-bit number of torch's global generator gives four elements of the mask; torch's own dropout
    costs small networks as much as their layers.
    """
    if not cheap(rate) or values.device.type != "cpu":
        return nn.functional.dropout(values, rate)
    numbers = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    return values * mask_of(numbers, values.shape, rate, values.dtype)


def cheap(rate: float) -> bool:
    """Whether a mask of this rate is made of whole random numbers."""
    return 0 < round(rate * LEVELS) < LEVELS


def mask_of(numbers: Tensor, shape: Sequence[int], rate: float, dtype: torch.dtype) -> Tensor:
    """The scaled mask that random 64-bit numbers make, four elements each; their rows are rows of masks.

    Args:
        numbers: The random numbers; where they have several rows, the first dimension of the shape counts these.
        shape: The shape of the mask, or of all of them together.
        rate: The probability of a zero.
        dtype: The type of the mask.
    """
    zero_levels = round(rate * LEVELS)
    bits = numbers.view(torch.int16)
    size = math.prod(shape) // (len(numbers) if numbers.dim() > 1 else 1)
    mask = (bits[..., :size].reshape(shape) >= zero_levels - LEVELS // 2).to(dtype)
    return mask.mul_(LEVELS / (LEVELS - zero_levels))


def layers_of(module: nn.Module, parameters: Iterable[str]) -> tuple[str, ...]:
    """The sub-modules that own one of these parameters with two dimensions or more.

    These are the layers that mix their inputs; a layer of which only the bias is meant, or a norm, is not among them.
    """
    known = dict(module.named_parameters())
    owners = (name.rpartition(".")[0] for name in parameters if known[name].dim() > 1)
    return tuple(dict.fromkeys(owner for owner in owners if owner))


@contextmanager
def dropout_before(module: nn.Module, layers: Iterable[str], rate: float) -> Iterator[None]:
    """Drop inputs of some layers while the network is in training mode; only for the time of a ``with`` block.

    Args:
        module: The network.
        layers: The names of its sub-modules whose first input is dropped, where that is a tensor of real numbers.
        rate: The probability that a value is set to 0.
    """
    hook = _hook(module, rate)
    with ExitStack() as stack:
        for layer in layers if rate else ():
            stack.callback(module.get_submodule(layer).register_forward_pre_hook(hook).remove)
        yield


def _hook(module: nn.Module, rate: float) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None]:
    def drop(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        del layer  # its own mode does not tell: some layers stay in training mode
        first = inputs[0] if inputs else None
        if not module.training or not isinstance(first, Tensor) or not first.is_floating_point():
            return None
        return (dropped(first, rate), *inputs[1:])

    return drop
