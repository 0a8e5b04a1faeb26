"""Convolutions with maxima of windows between them, kept in the order of oneDNN while nothing else looks at them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapm.core.first_order import first_order_is_enough

LARGEST = 1e37
"""Values that stay below this are far from overflowing."""
ENOUGH = 4096
"""Pixels of a batch from which on the calls that it takes are worth it."""
GLOBAL_HOOKS = (
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_backward_hooks,
    nn.modules.module._global_backward_pre_hooks,
)


def pooled(images: Tensor, convolutions: Sequence[nn.Module]) -> Tensor:
    """Convolve, take the maxima of windows of 2×2 and rectify, again and again.

    Max pooling comes before the ReLU. The two commute, so the result is the same, with a quarter of the ReLU's work.

    Args:
        images: Pictures or maps (batch, channels, height, width).
        convolutions: What each round begins with.

    Returns:
        The maps after the last rectifier.
    """
    if _opaque(images, convolutions):
        return _pooled_opaque(images, convolutions)
    for convolution in convolutions:
        # in place, because nothing needs what is overwritten
        images = functional.max_pool2d(convolution(images), 2).relu_()
    return images


def _pooled_opaque(images: Tensor, convolutions: Sequence[nn.Module]) -> Tensor:
    maps = images.to_mkldnn()
    for k, convolution in enumerate(convolutions):
        if k:
            maps = maps.relu()
        maps = functional.max_pool2d(convolution(maps), 2, 2)
    return maps.to_dense().relu_()


def _opaque(images: Tensor, convolutions: Sequence[nn.Module]) -> bool:
    """Whether oneDNN computes all of it: plain layers on a processor in single precision, at ordinary values.

    Its maxima take half the time of torch's, and pass over what is not a number instead of giving it back.
    """
    return (
        first_order_is_enough()
        and _plain(images)
        and images.dim() == 4
        and images.shape[0] * images.shape[2:].numel() >= ENOUGH
        and has_onednn()
        and not torch.is_autocast_enabled("cpu")
        and all(_untouched(convolution) for convolution in convolutions)
        and _largest(images, convolutions) < LARGEST
    )


def has_onednn() -> bool:
    """Whether torch computes with oneDNN, on a processor that this is written for."""
    there = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)  # type: ignore[no-untyped-call]
    return there and torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _plain(values: Tensor) -> bool:
    return type(values) in (Tensor, nn.Parameter) and values.device.type == "cpu" and values.dtype == torch.float32


def _untouched(convolution: nn.Module) -> bool:
    """Whether it is torch's own layer, without hooks that would see tensors in another order."""
    hooks = (
        convolution._forward_hooks,
        convolution._forward_pre_hooks,
        convolution._backward_hooks,
        convolution._backward_pre_hooks,
        *GLOBAL_HOOKS,
    )
    plain = type(convolution) is nn.Conv2d and convolution.padding_mode == "zeros"
    return plain and not any(hooks) and all(_plain(p) for p in convolution.parameters())


@torch.no_grad()
def _largest(images: Tensor, convolutions: Sequence[nn.Module]) -> float:
    """A generous bound on the length of all maps, and so on their values; not a number where a part of them is none."""
    bound = _length(images)
    for convolution in convolutions:
        lengths = {name: _length(p) * p.numel() for name, p in convolution.named_parameters()}
        bound = bound * lengths["weight"] + lengths.get("bias", 0.0) * images.numel()
    return bound


def _length(values: Tensor) -> float:
    length: float = torch.linalg.vector_norm(values).item()
    return length
