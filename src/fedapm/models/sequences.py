"""Sequences of unequal length, padded to one tensor; the padding never affects the output.

Nothing is packed and no branch depends on a value, so ``torch.func.vmap`` can run many clients in one call. Lengths of
None mean that every sample has all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapm.core.dropout import Dropout
from fedapm.errors import FedapmError


def step_mask(lengths: Tensor | None, values: Tensor, dim: int = 1) -> Tensor:
    """Which steps each sample has (batch, steps); ``dim`` is the dimension of the values that counts steps."""
    steps = values.shape[dim]
    if lengths is None:
        return torch.ones(values.shape[0], steps, dtype=torch.bool, device=values.device)
    return torch.arange(steps, device=values.device) < lengths.unsqueeze(-1)


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """The values with zeros where the mask is False, even where they are NaN or infinite."""
    return torch.where(mask, values, 0.0)


def value_shapes(shapes: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The shapes of a sample's modalities, without those of the lengths, which are scalars."""
    return [shape for shape in shapes if len(shape) > 0]


class Convolutions(nn.Module):
    """Three convolutions over time, to 32, 64 and 128 channels, each followed by max pooling, ReLU and dropout.

    The padding is set to zero before every convolution, as if the tensor ended there. Max pooling comes before the
    ReLU: the two commute, zero padding is neutral, and the ReLU has less to do. An incomplete pooling window at the end
    is used, so that no sequence is too short.
    """

    def __init__(self, channels: int, pool: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        if pool < 1:
            raise FedapmError(f"convolutions cannot pool {pool} steps into one; use 1 for no pooling, or more.")
        self.pool = pool
        self.conv1 = nn.Conv1d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv1d(32, 64, 5, padding=2)
        self.conv3 = nn.Conv1d(64, 128, 5, padding=2)
        self.dropout = Dropout(dropout)

    def forward(self, signal: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map (batch, channels, time) to (batch, steps, 128), with zeros in the padding."""
        hidden = masked(signal.to(self.conv1.weight.dtype), step_mask(lengths, signal, -1).unsqueeze(1))
        for convolution in (self.conv1, self.conv2, self.conv3):
            hidden = masked(convolution(hidden), step_mask(lengths, hidden, -1).unsqueeze(1))
            if self.pool > 1:
                hidden = functional.max_pool1d(hidden, self.pool, ceil_mode=True)
            hidden = self.dropout(hidden.relu())
            lengths = self._pooled(lengths)
        return hidden.transpose(1, 2)

    def output_lengths(self, lengths: Tensor | None) -> Tensor | None:
        """The number of output steps of each sample."""
        return self._pooled(self._pooled(self._pooled(lengths)))

    def _pooled(self, lengths: Tensor | None) -> Tensor | None:
        return None if lengths is None else (lengths + self.pool - 1) // self.pool


class GRU(nn.GRU):
    """One unidirectional layer over (batch, steps, features).

    Its state at a step depends on earlier steps alone, so it may run over the padding.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__(features, width, batch_first=True)

    def train(self, mode: bool = True) -> Self:
        """Stay in training mode: it makes no difference here, and cuDNN gives no gradients of a GRU in evaluation."""
        del mode
        return super().train(True)

    def states(self, values: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The state at each step; the padding is taken as zero."""
        steps = masked(values.to(next(self.parameters()).dtype), step_mask(lengths, values).unsqueeze(-1))
        outputs: Tensor = self(steps)[0]
        return outputs
