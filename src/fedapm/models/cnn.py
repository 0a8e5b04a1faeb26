"""The paper's network for CIFAR10: two convolutions and two fully connected layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from fedapm.core.forward import Step
from fedapm.models.dropout import Dropout


class CNN(nn.Module):
    """Square pictures → conv 16 → conv 32 → fc 128 → classes.

    Pooling comes before the rectifier: the maximum of a window commutes with it, so the numbers are the same and
    three quarters of the rectifier's work is saved.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("conv1",),
        "output": ("fc1", "fc2"),
        "head": ("fc2",),
    }
    flow: ClassVar[tuple[Step, ...]] = (
        Step("edges", ("pictures",), ("conv1",)),
        Step("features", ("edges",), ("conv2",)),
        Step("scores", ("features",), ("dropout", "fc1", "fc2")),
    )
    takes: ClassVar[str] = "square pictures (channels, size, size), 4 pixels wide at least"

    def __init__(self, classes: int = 10, channels: int = 3, size: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * (size // 4) ** 2, 128)
        self.fc2 = nn.Linear(128, classes)
        self.dropout = Dropout(dropout)

    @classmethod
    def fitting(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The sizes that the inputs of one sample need; a ValueError where no size would do."""
        ((channels, height, width),) = shapes
        if height != width or height < 4:
            raise ValueError(f"pictures of {height}×{width} pixels")
        return {"channels": channels, "size": height}

    def forward(self, pictures: Tensor) -> Tensor:
        """Class scores."""
        return self.scores(self.features(self.edges(pictures)))

    def edges(self, pictures: Tensor) -> Tensor:
        """16 maps of half the side."""
        return functional.max_pool2d(self.conv1(pictures.to(self.conv1.weight.dtype)), 2).relu()

    def features(self, edges: Tensor) -> Tensor:
        """32 maps of a quarter of the side, in a row."""
        return functional.max_pool2d(self.conv2(edges), 2).relu().flatten(1)

    def scores(self, features: Tensor) -> Tensor:
        """Class scores from features."""
        hidden = self.fc1(self.dropout(features)).relu()
        scores: Tensor = self.fc2(self.dropout(hidden))
        return scores
