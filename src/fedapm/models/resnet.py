"""ResNet18 for small images such as those of CIFAR-100 and TinyImageNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from fedapm.core.dropout import Dropout
from fedapm.core.forward import Step
from fedapm.errors import FedapmError, did_you_mean

STEMS = ("small", "large")
NORMS = ("group", "batch")
Norm = Callable[[int], nn.Module]
"""Makes a normalization layer for a number of channels."""


class Block(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.around = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, hidden: Tensor) -> Tensor:
        """The input plus the convolutions' output."""
        change = self.norm2(self.conv2(self.norm1(self.conv1(hidden)).relu()))
        added: Tensor = self.around(hidden) + change
        return added.relu()


class Stem(nn.Module):
    """The first convolution: 3×3 for small images, 7×7 with pooling for photographs."""

    def __init__(self, kind: str, channels: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        if kind not in STEMS:
            raise FedapmError(f"unknown stem {kind!r} of resnet18; {did_you_mean(kind, STEMS)}")
        large = kind == "large"
        self.conv = nn.Conv2d(channels, width, *((7, 2, 3) if large else (3, stride, 1)), bias=False)
        self.norm = norm(width)
        self.pool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """The first feature maps."""
        maps: Tensor = self.pool(self.norm(self.conv(images.to(self.conv.weight.dtype))).relu())
        return maps


class ResNet18(nn.Module):
    """Images → stem → 4 groups of 2 residual blocks, 64 to 512 channels → mean → fc → classes.

    GroupNorm, the default, needs no batch statistics, which differ between clients with different data.

    Args:
        classes: The number of classes.
        channels: The channels of an image.
        width: The channels of the first group; each further group doubles them.
        stem: ``small`` is a 3×3 convolution, ``large`` the usual one for photographs: 7×7, stride 2, max pooling.
        stride: The stride of the small stem.
        norm: ``group`` or ``batch``. With ``batch`` each client keeps its own running statistics, which are never
            averaged, and clients cannot be batched.
        groups: The groups of GroupNorm; two are common in federated learning.
        dropout: The dropout rate before the last layer.
    """

    # the last group alone has three quarters of all parameters: too many to be personal for clients with little data
    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {"input": ("stem",), "output": ("fc",), "head": ("fc",)}
    forward_steps: ClassVar[tuple[Step, ...]] = (
        Step(output="stem_out", inputs=("images",), modules=("stem",)),
        Step(output="groups_out", inputs=("stem_out",), modules=("group1", "group2", "group3", "group4")),
        Step(output="logits", inputs=("groups_out",), modules=("dropout", "fc")),
    )
    input_description: ClassVar[str] = "images (channels, height, width)"

    def __init__(
        self,
        classes: int = 100,
        channels: int = 3,
        width: int = 64,
        stem: Literal["small", "large"] = "small",
        stride: int = 1,
        norm: Literal["group", "batch"] = "group",
        groups: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        make = _norm(norm, groups)
        self.stem = Stem(stem, channels, width, stride, make)
        self.group1 = nn.Sequential(Block(width, width, 1, make), Block(width, width, 1, make))
        self.group2 = nn.Sequential(Block(width, 2 * width, 2, make), Block(2 * width, 2 * width, 1, make))
        self.group3 = nn.Sequential(Block(2 * width, 4 * width, 2, make), Block(4 * width, 4 * width, 1, make))
        self.group4 = nn.Sequential(Block(4 * width, 8 * width, 2, make), Block(8 * width, 8 * width, 1, make))
        self.dropout = Dropout(dropout)
        self.fc = nn.Linear(8 * width, classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    @classmethod
    def arguments_for(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The stem for images of this size; ValueError if the inputs are not images.

        In each case the first group works on maps of about 32×32. At 64 pixels the large stem would halve twice and
        leave 2×2 in the last group, so the small one with stride 2 is used there.
        """
        ((channels, height, width),) = shapes
        side = min(height, width)
        if side >= 128:
            return {"channels": channels, "stem": "large"}
        return {"channels": channels, "stem": "small", "stride": 2 if side >= 64 else 1}

    def forward(self, images: Tensor) -> Tensor:
        """The logits of images (batch, channels, height, width)."""
        return self.logits(self.groups_out(self.stem_out(images)))

    def stem_out(self, images: Tensor) -> Tensor:
        """The first feature maps."""
        maps: Tensor = self.stem(images)
        return maps

    def groups_out(self, stem_out: Tensor) -> Tensor:
        """The residual blocks, averaged over the image."""
        maps: Tensor = self.group4(self.group3(self.group2(self.group1(stem_out))))
        return maps.mean((2, 3))

    def logits(self, groups_out: Tensor) -> Tensor:
        """The last layer."""
        logits: Tensor = self.fc(self.dropout(groups_out))
        return logits


def _norm(kind: str, groups: int) -> Norm:
    if kind not in NORMS:
        raise FedapmError(f"unknown norm {kind!r} of resnet18; {did_you_mean(kind, NORMS)}")
    return nn.BatchNorm2d if kind == "batch" else lambda channels: nn.GroupNorm(groups, channels)
