"""Dropout for several clients at once: each one's masks come from the stream it would draw them from by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedapm.core.dropout import Dropout, cheap, mask_of

KNOWN = (nn.Dropout, Dropout)
"""The modules whose draws are known; others draw as their authors like."""

Mask = Callable[[Tensor, float, bool], Tensor]
"""Of values (clients, samples, …), a rate and whether masks are made of whole random numbers, the scaled masks."""


class Masks:
    """The masks of some clients' batches, drawn one after the other."""

    def __init__(self, streams: Sequence[torch.Generator], sizes: Sequence[int]) -> None:
        self._streams, self._sizes = streams, sizes

    def __call__(self, shape: Sequence[int], dtype: torch.dtype, rate: float, whole_numbers: bool) -> Tensor:
        """Masks of shape (clients, samples, …), already scaled; what is beyond a client's samples is zero.

        Args:
            shape: The shape of all masks together.
            dtype: Their type.
            rate: The probability of a zero.
            whole_numbers: Whether four elements are made of each random number, as :func:`dropped` does.
        """
        each = torch.Size(shape[2:]).numel()
        whole_numbers = whole_numbers and cheap(rate)
        if whole_numbers and self._sizes.count(shape[1]) == len(self._sizes):
            numbers = torch.empty(len(self._sizes), -(-shape[1] * each // 4), dtype=torch.int64)
            for row, stream in zip(numbers, self._streams, strict=True):
                row.random_(-(2**63), None, generator=stream)
            return mask_of(numbers, shape, rate, dtype)
        masks = torch.zeros(tuple(shape), dtype=dtype)
        for mask, size, stream in zip(masks, self._sizes, self._streams, strict=True):
            if whole_numbers:
                numbers = torch.empty(-(-size * each // 4), dtype=torch.int64).random_(-(2**63), None, generator=stream)
                mask[:size] = mask_of(numbers, mask[:size].shape, rate, dtype)
            else:
                mask[:size].bernoulli_(1 - rate, generator=stream).div_(1 - rate)
        return masks


def unknown_draws(module: nn.Module) -> str | None:
    """The part of a network whose random draws are not known, if there is one."""
    for name, part in module.named_modules():
        other = isinstance(part, _DropoutNd) and part.p > 0 and type(part) not in KNOWN
        if other or (isinstance(part, nn.RNNBase) and part.dropout > 0):
            return f"{name} ({type(part).__name__})"
    return None


def dropouts(module: nn.Module) -> list[nn.Dropout]:
    """The parts of a network that drop values in training."""
    return [part for part in module.modules() if isinstance(part, nn.Dropout) and part.p > 0]


@contextmanager
def masked(module: nn.Module, before: Sequence[str], rate: float, draw: Mask) -> Iterator[None]:
    """A network whose dropout takes its masks from outside, for the time of a ``with`` block.

    Args:
        module: The network.
        before: Layers whose input is dropped, too.
        rate: The rate of that.
        draw: The mask of some values.
    """

    def drops(rate: float, whole_numbers: bool) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None]:
        def hook(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            del layer
            first = inputs[0] if inputs else None
            if not isinstance(first, Tensor) or not first.is_floating_point():
                return None
            return (first * draw(first, rate, whole_numbers), *inputs[1:])

        return hook

    with ExitStack() as stack:
        for part in dropouts(module):
            whole_numbers = isinstance(part, Dropout) and not part.inplace
            stack.callback(part.register_forward_pre_hook(drops(part.p, whole_numbers)).remove)
            stack.callback(part.train, part.training)
            part.eval()
        for name in before if rate else ():
            stack.callback(module.get_submodule(name).register_forward_pre_hook(drops(rate, True)).remove)
        yield
