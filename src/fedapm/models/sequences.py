"""Sequences of unequal length in one tensor: what lies beyond a sample's length is never seen.

Nothing is packed and no value decides which way the code goes, so one call can serve many clients at once
(``torch.func.vmap``). Lengths of None mean that every sample has every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapm.errors import FedapmError
from fedapm.models.dropout import Dropout


def inside(lengths: Tensor | None, values: Tensor, dim: int = 1) -> Tensor:
    """Which steps each sample has: (batch, steps), with as many steps as the values have along a dimension."""
    steps = values.shape[dim]
    if lengths is None:
        return torch.ones(values.shape[0], steps, dtype=torch.bool, device=values.device)
    return torch.arange(steps, device=values.device) < lengths.unsqueeze(-1)


def keep(values: Tensor, seen: Tensor) -> Tensor:
    """The values that are seen, and zero for all others, also where those are not finite."""
    return torch.where(seen, values, 0.0)


def modalities(shapes: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Of the shapes of a sample's inputs those of the values: a length is a single number and has none."""
    return [shape for shape in shapes if len(shape) > 0]


class Convolutions(nn.Module):
    """Three convolutions over time, to 32, 64 and 128 channels, each with pooling, a rectifier and dropout.

    Behind a sample's end there are zeros before every convolution, which is how a convolution pads where a tensor ends.
    Pooling comes before the rectifier: the numbers are the same, a zero behind the end is neutral, and there is less
    to rectify. A window that is only partly filled counts, so that no sequence is too short.
    """

    def __init__(self, channels: int, pool: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        if pool < 1:
            raise FedapmError(f"convolutions cannot pool {pool} steps into one; give 1 for no pooling, or more.")
        self.pool = pool
        self.conv1 = nn.Conv1d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv1d(32, 64, 5, padding=2)
        self.conv3 = nn.Conv1d(64, 128, 5, padding=2)
        self.dropout = Dropout(dropout)

    def forward(self, signal: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Of (batch, channels, time): (batch, steps, 128), zero behind each sample's end."""
        hidden = keep(signal.to(self.conv1.weight.dtype), inside(lengths, signal, -1).unsqueeze(1))
        for convolution in (self.conv1, self.conv2, self.conv3):
            hidden = keep(convolution(hidden), inside(lengths, hidden, -1).unsqueeze(1))
            if self.pool > 1:
                hidden = functional.max_pool1d(hidden, self.pool, ceil_mode=True)
            hidden = self.dropout(hidden.relu())
            lengths = self._pooled(lengths)
        return hidden.transpose(1, 2)

    def left(self, lengths: Tensor | None) -> Tensor | None:
        """How many steps come out for each sample."""
        return self._pooled(self._pooled(self._pooled(lengths)))

    def _pooled(self, lengths: Tensor | None) -> Tensor | None:
        return None if lengths is None else (lengths + self.pool - 1) // self.pool


class GRU(nn.GRU):
    """One layer in one direction, over (batch, steps, features).

    What it says at a step depends on earlier steps alone, so it may run on over the padding.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__(features, width, batch_first=True)

    def train(self, mode: bool = True) -> Self:
        """Stay in training mode, which changes nothing here: cuDNN gives no gradients of a GRU in any other."""
        del mode
        return super().train(True)

    def over(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What it says at each step; what lies behind a sample's end is taken for zero."""
        steps = keep(values.to(next(self.parameters()).dtype), inside(lengths, values).unsqueeze(-1))
        outputs: Tensor = self(steps)[0]
        return outputs
