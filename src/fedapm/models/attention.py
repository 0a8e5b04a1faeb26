"""Attention that pools the steps of a sequence into one vector of fixed size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedapm.models.sequences import keep


class AttentionPooling(nn.Module):
    """Additive attention: each head weighs the steps by its own scores, and the heads' averages stand side by side.

    Every head averages whole steps, so the width of a step need not divide by the number of heads.
    """

    def __init__(self, width: int, heads: int, hidden: int = 512) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden)
        self.score = nn.Linear(hidden, heads)

    def forward(self, steps: Tensor, seen: Tensor) -> Tensor:
        """Of (batch, steps, width) and which steps count: (batch, heads × width); zero where no step counts."""
        steps, seen = keep(steps, seen.unsqueeze(-1)), seen.unsqueeze(-1)
        scores = self.score(self.hidden(steps).tanh())
        # the lowest finite number rather than −∞: a sample without any step must not divide zero by zero
        weights = torch.where(seen, scores, torch.finfo(scores.dtype).min).softmax(dim=1)
        return (weights.transpose(1, 2) @ steps).flatten(1)
