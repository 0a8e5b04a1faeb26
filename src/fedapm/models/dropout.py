"""Dropout with a mask that is cheap to draw on a CPU, where it would cost small networks as much as their layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEVELS = 2**16
"""A mask is drawn from 16 random bits an element, so its probability is a multiple of 1/65536."""


class Dropout(nn.Dropout):
    """Torch's dropout, with four elements of the mask from each number that its generator gives on a CPU."""

    def forward(self, values: Tensor) -> Tensor:
        """Each value is 0 with probability p in training; the others grow so that the mean stays."""
        zeros = round(self.p * LEVELS)
        if not self.training or not zeros or zeros == LEVELS or self.inplace or values.device.type != "cpu":
            return super().forward(values)
        numbers = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = numbers.view(torch.int16)[: values.numel()].view(values.shape)
        kept = (bits >= zeros - LEVELS // 2).to(values.dtype)
        return values * kept.mul_(LEVELS / (LEVELS - zeros))
