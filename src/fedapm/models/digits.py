"""A small network for 8×8 pictures of digits: seconds on a laptop, and every stage can be personal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from fedapm.core.forward import Step


class DigitsNet(nn.Module):
    """64 pixels → stem → body → head, three fully connected layers."""

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("stem",),
        "output": ("head",),
        "head": ("head",),
    }
    flow: ClassVar[tuple[Step, ...]] = (
        Step("stemmed", ("pixels",), ("stem",)),
        Step("features", ("stemmed",), ("body",)),
        Step("scores", ("features",), ("head",)),
    )

    def __init__(self, classes: int = 10, width: int = 64, features: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.body = nn.Linear(width, features)
        self.head = nn.Linear(features, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Class scores."""
        return self.scores(self.features(self.stemmed(pixels)))

    def stemmed(self, pixels: Tensor) -> Tensor:
        """What the stem makes of the pixels."""
        hidden: Tensor = self.stem(pixels.flatten(1)).relu()
        return hidden

    def features(self, stemmed: Tensor) -> Tensor:
        """What the body makes of that."""
        hidden: Tensor = self.body(stemmed).relu()
        return hidden

    def scores(self, features: Tensor) -> Tensor:
        """Class scores from features."""
        scores: Tensor = self.head(features)
        return scores
