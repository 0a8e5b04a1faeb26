"""Fixed point: numbers as whole multiples of a step, which are added up exactly and which a mask can hide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SPARE = 2
"""Bits that a sum leaves free: one for its sign, one by which a sum that is none is recognized."""
TYPES = {32: torch.int32, 64: torch.int64}
EXACT = 2**52
"""The most steps that numbers in double precision tell apart."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as whole multiples of a step. What is beyond the range is cut off, and so withheld."""

    step: float
    range: float
    bits: int

    @property
    def largest(self) -> int:
        """The most steps of a number."""
        return int(self.range / self.step)

    @property
    def room(self) -> int:
        """How many clients' numbers can be added up."""
        return (1 << self.bits - SPARE) // self.largest

    def lengthening(self, count: int) -> float:
        """How much longer rounding can make a vector of so many numbers, each of which it moves by less than a step."""
        return self.step * math.sqrt(count)

    def encode(self, name: str, tensor: Tensor, stream: torch.Generator | None) -> dict[str, Tensor]:
        """Down or up to a whole multiple, each as likely as the other is near."""
        draws = torch.full(tensor.shape, 0.5, dtype=torch.float64)
        if stream is not None:
            draws = torch.rand(tensor.shape, generator=stream, dtype=torch.float64)
        whole = (tensor.double() / self.step + draws.to(tensor.device)).floor().clamp(-self.largest, self.largest)
        return {name: whole.to(TYPES[self.bits])}

    def decode(self, coded: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The multiples times the step."""
        return {name: (whole.double() * self.step).to(dtype) for name, whole in coded.items()}
