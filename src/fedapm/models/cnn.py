"""The paper's network for CIFAR10: two convolutions and two fully connected layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from fedapm.core.dropout import Dropout
from fedapm.core.forward import Step
from fedapm.models.pooled import pooled


class CNN(nn.Module):
    """Square images → conv 16 → conv 32 → fc 128 → classes.

    Args:
        classes: The number of classes.
        channels: The channels of an image.
        size: The height and width of an image in pixels.
        dropout: The dropout rate before each fully connected layer.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("conv1",),
        "output": ("fc1", "fc2"),
        "head": ("fc2",),
    }
    forward_steps: ClassVar[tuple[Step, ...]] = (
        Step(output="conv1_out", inputs=("images",), modules=("conv1",)),
        Step(output="conv2_out", inputs=("conv1_out",), modules=("conv2",)),
        Step(output="logits", inputs=("conv2_out",), modules=("dropout", "fc1", "fc2")),
    )
    input_description: ClassVar[str] = "square images (channels, size, size), 4 pixels wide at least"

    def __init__(self, classes: int = 10, channels: int = 3, size: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * (size // 4) ** 2, 128)
        self.fc2 = nn.Linear(128, classes)
        self.dropout = Dropout(dropout)

    @classmethod
    def arguments_for(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The arguments for samples whose inputs have these shapes; ValueError if there are none."""
        ((channels, height, width),) = shapes
        if height != width or height < 4:
            raise ValueError(f"images of {height}×{width} pixels")
        return {"channels": channels, "size": height}

    def forward(self, images: Tensor) -> Tensor:
        """The logits of images (batch, channels, size, size)."""
        maps = pooled(images.to(self.conv1.weight.dtype), (self.conv1, self.conv2))
        return self.logits(maps.flatten(1))

    def conv1_out(self, images: Tensor) -> Tensor:
        """16 maps of half the size."""
        return pooled(images.to(self.conv1.weight.dtype), (self.conv1,))

    def conv2_out(self, conv1_out: Tensor) -> Tensor:
        """32 maps of a quarter of the size, flattened."""
        return pooled(conv1_out, (self.conv2,)).flatten(1)

    def logits(self, conv2_out: Tensor) -> Tensor:
        """The fully connected layers."""
        hidden = self.fc1(self.dropout(conv2_out)).relu_()
        logits: Tensor = self.fc2(self.dropout(hidden))
        return logits
