"""The paper's network for CIFAR10: two convolutions and two fully connected layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional


class CNN(nn.Module):
    """3×32×32 pictures → conv 16 → conv 32 → fc 128 → classes.

    Pooling comes before the rectifier: the maximum of a window commutes with it, so the numbers are the same and
    three quarters of the rectifier's work is saved.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("conv1",),
        "output": ("fc1", "fc2"),
        "head": ("fc2",),
    }

    def __init__(self, classes: int = 10, channels: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 8 * 8, 128)
        self.fc2 = nn.Linear(128, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, pictures: Tensor) -> Tensor:
        """Class scores."""
        hidden = functional.max_pool2d(self.conv1(pictures), 2).relu()
        hidden = functional.max_pool2d(self.conv2(hidden), 2).relu()
        hidden = self.dropout(hidden.flatten(1))
        scores: Tensor = self.fc2(self.dropout(self.fc1(hidden).relu()))
        return scores
