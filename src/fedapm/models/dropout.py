"""Dropout with a mask that is cheap to draw on a CPU; torch's own costs small networks as much as their layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEVELS = 2**16
"""Each element uses 16 random bits, so the rate is a multiple of 1/65536."""


class Dropout(nn.Dropout):
    """Torch's dropout; on a CPU each random 64-bit number gives four elements of the mask."""

    def forward(self, values: Tensor) -> Tensor:
        """Set each value to 0 with probability p in training and scale the others to keep the mean."""
        zero_levels = round(self.p * LEVELS)
        if not self.training or not zero_levels or zero_levels == LEVELS or self.inplace or values.device.type != "cpu":
            return super().forward(values)
        numbers = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = numbers.view(torch.int16)[: values.numel()].view(values.shape)
        mask = (bits >= zero_levels - LEVELS // 2).to(values.dtype)
        return values * mask.mul_(LEVELS / (LEVELS - zero_levels))
