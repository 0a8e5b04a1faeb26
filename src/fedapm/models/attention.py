"""Attention that pools the steps of a sequence into one vector of fixed size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedapm.models.sequences import masked


class AttentionPooling(nn.Module):
    """Additive attention: each head averages the steps, weighted by its own scores; the averages are concatenated.

    Every head averages whole steps, so the number of heads need not divide the width of a step.
    """

    def __init__(self, width: int, heads: int, hidden: int = 512) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden)
        self.score = nn.Linear(hidden, heads)

    def forward(self, steps: Tensor, mask: Tensor) -> Tensor:
        """Pool (batch, steps, width) to (batch, heads × width); zero for samples whose mask has no step."""
        steps, mask = masked(steps, mask.unsqueeze(-1)), mask.unsqueeze(-1)
        scores = self.score(self.hidden(steps).tanh())
        # the lowest finite number instead of −∞: softmax over no step at all would be NaN
        weights = torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(dim=1)
        return (weights.transpose(1, 2) @ steps).flatten(1)
