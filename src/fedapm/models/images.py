"""A pretrained network for images and a linear head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedapm.core.forward import Step
from fedapm.core.pretrained import load_efficientnet_lite0
from fedapm.errors import FedapmError
from fedapm.models.weights import transformer

LITE0 = "efficientnet-lite0"


class ImageClassifier(nn.Module):
    """Standardized images → enlarged and scaled as the network knows them → its layers → classes.

    Args:
        classes: The number of classes.
        weights: ``efficientnet-lite0`` (4 million parameters, installed with fedapm[features]), a folder with a ViT of
            transformers, or a repository on the hub with one.
        size: The height and width that images are enlarged to; a ViT's own if not given, and 96 for EfficientNet-Lite0.
        mean: The mean of each channel that the data set's images were standardized with; CIFAR-10's if not given.
        std: The standard deviation of each channel.
        fetch: Whether a repository may be downloaded.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("encoder.0",),
        "output": ("head",),
        "head": ("head",),
    }
    input_description: ClassVar[str] = "images (3, height, width)"
    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        classes: int = 10,
        weights: str = LITE0,
        size: int | None = None,
        mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465),
        std: tuple[float, ...] = (0.2470, 0.2435, 0.2616),
        fetch: bool = False,
    ) -> None:
        super().__init__()
        # building and loading draw random numbers, which must not change the caller's
        with torch.random.fork_rng(devices=[]):
            parts, width, own_size, (center, spread) = _lite0() if weights == LITE0 else _vit(weights, fetch)
        self.encoder = nn.ModuleList(parts)
        self.head = nn.Linear(width, classes)
        self.size = size or own_size
        # x·std + mean is a pixel from 0 to 1, which the network wants less its center, over its spread
        scale, shift = (torch.tensor(values).view(1, 3, 1, 1) for values in (std, mean))
        self.register_buffer("scale", scale / spread, persistent=False)
        self.register_buffer("shift", (shift - center) / spread, persistent=False)
        self.forward_steps = (
            Step("shown", ("images",)),
            *(
                Step(f"part_{k}_out", (f"part_{k - 1}_out" if k else "shown",), (f"encoder.{k}",))
                for k in range(len(parts))
            ),
            Step("logits", (f"part_{len(parts) - 1}_out",), ("head",)),
        )

    @classmethod
    def arguments_for(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Nothing depends on the size of images; ValueError if samples are no images."""
        ((channels, _, _),) = (tuple(shape) for shape in shapes)
        if channels != 3:
            raise ValueError("images have three channels")
        return {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("part_") and name.endswith("_out"):
            return self.encoder[int(name[len("part_") : -len("_out")])]
        return super().__getattr__(name)

    def forward(self, images: Tensor) -> Tensor:
        """The logits of images (batch, 3, height, width)."""
        states = self.shown(images)
        for part in self.encoder:
            states = part(states)
        return self.logits(states)

    def shown(self, images: Tensor) -> Tensor:
        """Images as the network knows them (batch, 3, size, size)."""
        size = (self.size, self.size)
        enlarged = nn.functional.interpolate(images, size, mode="bicubic", align_corners=False)
        return torch.addcmul(self.shift, enlarged, self.scale)

    def logits(self, features: Tensor) -> Tensor:
        """The scores of the classes."""
        scores: Tensor = self.head(features)
        return scores


Parts = tuple[list[nn.Module], int, int, tuple[float, float]]
"""The parts of a network, one after the other; its width, image size, and the center and spread of its pixels."""


class _Stem(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.conv, self.norm = network._conv_stem, network._bn0

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.relu6(self.norm(self.conv(images)))


class _Top(nn.Module):
    """The last convolution, and the mean over positions."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.conv, self.norm = network._conv_head, network._bn1

    def forward(self, maps: Tensor) -> Tensor:
        return nn.functional.relu6(self.norm(self.conv(maps))).mean((2, 3))


class _First(nn.Module):
    """The normalized first token, which stands for the image."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, states: Tensor) -> Tensor:
        normalized: Tensor = self.norm(states[:, 0])
        return normalized


class _Patches(nn.Module):
    """The embeddings of an image's patches, whose number may differ from that in training."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, images: Tensor) -> Tensor:
        embed: Callable[..., Tensor] = self.embeddings
        return embed(images, interpolate_pos_encoding=True)


def _lite0() -> Parts:
    network: Any = load_efficientnet_lite0(f"the network {LITE0}")
    for part in list(network.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, nn.Conv2d) and child.kernel_size == (1, 1):
                # the package's own class pads, which these need not, and peft cannot make others of it
                setattr(part, name, _pointwise(child))
    return [_Stem(network), *network._blocks, _Top(network)], 1280, 96, (127 / 255, 128 / 255)


def _pointwise(layer: nn.Conv2d) -> nn.Conv2d:
    plain = nn.Conv2d(layer.in_channels, layer.out_channels, 1, bias=layer.bias is not None)
    plain.load_state_dict(layer.state_dict())
    return plain


def _vit(weights: str, fetch: bool) -> Parts:
    network: Any = transformer(weights, {}, fetch, LITE0)
    if network.config.model_type != "vit":
        raise FedapmError(f"{weights} is a {network.config.model_type}; the model image takes a ViT or {LITE0}.")
    parts = [_Patches(network.embeddings), *network.layers, _First(network.layernorm)]
    return parts, network.config.hidden_size, network.config.image_size, (0.5, 0.5)
