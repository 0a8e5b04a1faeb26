"""A small network for 8×8 images of digits that trains in seconds on a laptop."""

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
    forward_steps: ClassVar[tuple[Step, ...]] = (
        Step(output="stem_out", inputs=("pixels",), modules=("stem",)),
        Step(output="body_out", inputs=("stem_out",), modules=("body",)),
        Step(output="logits", inputs=("body_out",), modules=("head",)),
    )

    def __init__(self, classes: int = 10, width: int = 64, features: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.body = nn.Linear(width, features)
        self.head = nn.Linear(features, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """The logits of images (batch, 64) or (batch, 8, 8)."""
        return self.logits(self.body_out(self.stem_out(pixels)))

    def stem_out(self, pixels: Tensor) -> Tensor:
        """The first layer."""
        hidden: Tensor = self.stem(pixels.flatten(1)).relu()
        return hidden

    def body_out(self, stem_out: Tensor) -> Tensor:
        """The second layer."""
        hidden: Tensor = self.body(stem_out).relu()
        return hidden

    def logits(self, body_out: Tensor) -> Tensor:
        """The last layer."""
        logits: Tensor = self.head(body_out)
        return logits
