"""A small network for 8×8 pictures of digits: seconds on a laptop, and every stage can be personal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn


class DigitsNet(nn.Module):
    """64 pixels → stem → body → head, three fully connected layers."""

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("stem",),
        "output": ("head",),
        "head": ("head",),
    }

    def __init__(self, classes: int = 10, width: int = 64, features: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.body = nn.Linear(width, features)
        self.head = nn.Linear(features, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Class scores."""
        hidden = self.stem(pixels.flatten(1)).relu()
        scores: Tensor = self.head(self.body(hidden).relu())
        return scores
