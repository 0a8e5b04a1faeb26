"""ResNet18 for small pictures such as CIFAR-100's and TinyImageNet's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from fedapm.core.forward import Step
from fedapm.errors import FedapmError, did_you_mean
from fedapm.models.dropout import Dropout

STEMS = ("small", "large")
NORMS = ("group", "batch")
Norm = Callable[[int], nn.Module]
"""Of a number of channels, the layer that normalises them."""


class Block(nn.Module):
    """Two convolutions, and a way around them."""

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
        """The block's change added to what came in."""
        change = self.norm2(self.conv2(self.norm1(self.conv1(hidden)).relu()))
        added: Tensor = self.around(hidden) + change
        return added.relu()


class Stem(nn.Module):
    """The first convolution: small for small pictures, large and with pooling for photographs."""

    def __init__(self, kind: str, channels: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        if kind not in STEMS:
            raise FedapmError(f"unknown stem {kind!r} of resnet18; {did_you_mean(kind, STEMS)}")
        large = kind == "large"
        self.conv = nn.Conv2d(channels, width, *((7, 2, 3) if large else (3, stride, 1)), bias=False)
        self.norm = norm(width)
        self.pool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()

    def forward(self, pictures: Tensor) -> Tensor:
        """The first maps of pictures."""
        maps: Tensor = self.pool(self.norm(self.conv(pictures.to(self.conv.weight.dtype))).relu())
        return maps


class ResNet18(nn.Module):
    """Pictures → 3×3 stem → 4 groups of 2 residual blocks, 64 to 512 channels → mean → fc → classes.

    Channels are normalised in groups (GroupNorm), which needs no statistics of a batch: clients whose data differ
    have nothing to disagree about, and two groups are usual in federated work. With ``norm="batch"`` the running
    statistics are each client's own and are never averaged, and the network cannot be run for many clients in one call.

    ``stem="small"`` is a 3×3 convolution; ``stride`` is its step. ``stem="large"`` is the usual one for photographs:
    7×7 with a step of 2, and max pooling. ``dropout`` is before the last layer; there is none unless asked for.
    """

    # the last group alone is three quarters of all parameters: too much to be personal for clients with little data
    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {"input": ("stem",), "output": ("fc",), "head": ("fc",)}
    flow: ClassVar[tuple[Step, ...]] = (
        Step("stemmed", ("pictures",), ("stem",)),
        Step("features", ("stemmed",), ("group1", "group2", "group3", "group4")),
        Step("scores", ("features",), ("dropout", "fc")),
    )
    takes: ClassVar[str] = "pictures (channels, height, width)"

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
    def fitting(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The stem for pictures of this size; a ValueError where the inputs are not pictures.

        The first group works on maps of about 32×32 in each case. At 64 pixels the large stem would halve twice
        and leave 2×2 in the last group, so there the small one steps by 2.
        """
        ((channels, height, width),) = shapes
        side = min(height, width)
        if side >= 128:
            return {"channels": channels, "stem": "large"}
        return {"channels": channels, "stem": "small", "stride": 2 if side >= 64 else 1}

    def forward(self, pictures: Tensor) -> Tensor:
        """Class scores."""
        return self.scores(self.features(self.stemmed(pictures)))

    def stemmed(self, pictures: Tensor) -> Tensor:
        """What the stem makes of the pictures."""
        maps: Tensor = self.stem(pictures)
        return maps

    def features(self, stemmed: Tensor) -> Tensor:
        """What the blocks make of that, averaged over the picture."""
        maps: Tensor = self.group4(self.group3(self.group2(self.group1(stemmed))))
        return maps.mean((2, 3))

    def scores(self, features: Tensor) -> Tensor:
        """Class scores from features."""
        scores: Tensor = self.fc(self.dropout(features))
        return scores


def _norm(kind: str, groups: int) -> Norm:
    if kind not in NORMS:
        raise FedapmError(f"unknown norm {kind!r} of resnet18; {did_you_mean(kind, NORMS)}")
    return nn.BatchNorm2d if kind == "batch" else lambda channels: nn.GroupNorm(groups, channels)
