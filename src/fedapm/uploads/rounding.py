"""Rounding: numbers in fewer bits, to the nearest, or up or down at random so that the mean over draws is right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from fedapm.errors import FedapmError

SCALE = "|scale"
"""What the name of a tensor's scale ends with."""
LEVELS = 127
"""The largest whole number of eight bits that has an opposite."""
LARGEST = float(torch.finfo(torch.bfloat16).max)
LOW_BITS = 1 << 16
"""What bfloat16 leaves off a float32."""


class Rounding(Protocol):
    """A way to write the numbers of a tensor."""

    def encode(self, name: str, tensor: Tensor, stream: torch.Generator | None) -> dict[str, Tensor]:
        """What is sent for a tensor of finite floats, by name.

        Args:
            name: The tensor's name.
            tensor: Its numbers.
            stream: Where random numbers are drawn from; without it each number becomes the nearest there is.
        """

    def decode(self, coded: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors that were sent, by name.

        Args:
            coded: What :meth:`encode` made of all of them; tensors of whole numbers are passed on.
            dtype: The type that floats had.
        """


class Exact:
    """Numbers as they are."""

    def encode(self, name: str, tensor: Tensor, stream: torch.Generator | None) -> dict[str, Tensor]:
        """The tensor itself."""
        del stream
        return {name: tensor}

    def decode(self, coded: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors themselves."""
        return {name: t.to(dtype) if t.is_floating_point() else t for name, t in coded.items()}


class BFloat16:
    """Two bytes a number: a float32 without the lower half of its bits. Larger numbers than there are become the
    largest there is.
    """

    def encode(self, name: str, tensor: Tensor, stream: torch.Generator | None) -> dict[str, Tensor]:
        """Random bits are added to those that are left off, so that the carry is as likely as it should be."""
        whole = tensor.clamp(-LARGEST, LARGEST).to(torch.float32).clamp(-LARGEST, LARGEST).contiguous()
        if stream is None:
            return {name: whole.to(torch.bfloat16)}
        added = torch.randint(0, LOW_BITS, tensor.shape, generator=stream, dtype=torch.int32).to(tensor.device)
        bits = (whole.view(torch.int32) + added) & -LOW_BITS
        return {name: bits.view(torch.float32).to(torch.bfloat16)}

    def decode(self, coded: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The same numbers in more bits."""
        return {name: t.to(dtype) if t.is_floating_point() else t for name, t in coded.items()}


class Int8:
    """One byte a number: whole multiples of a scale, the tensor's largest number divided by 127."""

    def encode(self, name: str, tensor: Tensor, stream: torch.Generator | None) -> dict[str, Tensor]:
        """Down or up to a whole multiple, each as likely as the other is near."""
        largest = tensor.abs().max().double() if tensor.numel() else torch.zeros((), dtype=torch.float64)
        # in single precision, as it is sent; what a number beyond that has more is withheld
        scale = (largest / LEVELS).clamp(max=torch.finfo(torch.float32).max).to(torch.float32).reshape(1)
        draws = torch.full(tensor.shape, 0.5, dtype=torch.float64)
        if stream is not None:
            draws = torch.rand(tensor.shape, generator=stream, dtype=torch.float64)
        step = scale.item() or math.inf
        whole = (tensor.double() / step + draws.to(tensor.device)).floor().clamp(-LEVELS, LEVELS)
        return {name: whole.to(torch.int8), name + SCALE: scale}

    def decode(self, coded: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The multiples times their scale."""
        tensors = {}
        for name, tensor in coded.items():
            if tensor.dtype == torch.int8:
                scale = coded[name + SCALE]
                if not bool(torch.isfinite(scale).all()) or bool((scale < 0).any()):
                    raise FedapmError(f"the scale of {name!r} is {scale.item():g}, which is none.")
                tensors[name] = tensor.to(dtype) * scale.item()
            elif not name.endswith(SCALE):
                tensors[name] = tensor
        return tensors
