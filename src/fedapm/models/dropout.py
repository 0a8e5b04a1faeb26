"""Dropout with a mask that is cheap to draw on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from fedapm.core.dropout import dropped


class Dropout(nn.Dropout):
    """Torch's dropout; on a CPU each random 64-bit number gives four elements of the mask."""

    def forward(self, values: Tensor) -> Tensor:
        """Set each value to 0 with probability p in training and scale the others to keep the mean."""
        return dropped(values, self.p) if self.training and not self.inplace else super().forward(values)
