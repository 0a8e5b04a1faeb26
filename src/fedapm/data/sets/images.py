"""What the image data sets share: reading image files and standardizing pixels."""

from __future__ import annotations

import threading
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fedapm.core.samples import Samples
from fedapm.data.clients import ClientData
from fedapm.data.dataset import DataSet, Pool, Source, federate, sampled
from fedapm.data.federation import Federation
from fedapm.data.partition import PartitionRule
from fedapm.errors import FedapmError

BLOCK = 128
"""Images that are standardized at a time: few enough to stay in the processor's cache."""

_warning_filters = threading.Lock()


def read_image(path: Path) -> np.ndarray[Any, Any]:
    """Read an image file as bytes (height, width, RGB); its EXIF orientation is ignored."""
    if not path.is_file():
        raise FedapmError(f"{path} is {'not a file' if path.exists() else 'missing'}; put the image there.")
    try:
        with path.open("rb") as file, _opened(file) as image:
            if image.format == "EPS":
                # Pillow would run Ghostscript on it
                raise FedapmError(f"{path} is PostScript, which is not supported; save it as JPEG or PNG.")
            return _rgb(image)
    except FedapmError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        size = str(error).partition(",")[0].removeprefix("Image size ")
        raise FedapmError(f"{path} is too large an image {size}; make it smaller.") from None
    except UnidentifiedImageError:
        if path.stat().st_size == 0:
            raise FedapmError(f"{path} is empty; fetch the image again.") from None
        raise FedapmError(f"{path} is not an image that can be read; fetch it again or save it as JPEG.") from None
    except Exception as error:  # damaged files make Pillow raise almost any exception
        reason = (str(error) or type(error).__name__).splitlines()[0].partition(" (")[0]
        raise FedapmError(f"{path} cannot be read as an image ({reason}); fetch it again.") from None


def standardize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Scale bytes (n, 3, h, w) to the range 0 to 1, then standardize each channel by its mean and deviation."""
    count, channels, height, width = images.shape
    # channels-last memory is fastest for convolutions on a CPU; the shape stays the same
    result = torch.empty(count, height, width, channels)
    rows = result.view(count, height * width * channels)
    center, spread = (torch.tensor(values).repeat(height * width) for values in (mean, std))
    for start in range(0, count, BLOCK):
        block = slice(start, start + BLOCK)
        result[block] = images[block].permute(0, 2, 3, 1)
        rows[block].div_(255).sub_(center).div_(spread)
    return result.permute(0, 3, 1, 2)


class ImageSet(DataSet):
    """A data set of images of one size, which are the network's input."""

    mean: ClassVar[tuple[float, float, float]]
    """The mean of each channel, for pixels from 0 to 1."""
    std: ClassVar[tuple[float, float, float]]
    """The standard deviation of each channel."""

    @abstractmethod
    def read_images(self, source: Source) -> Pool:
        """All samples, with images as bytes (n, 3, h, w)."""

    def read(self, source: Source) -> Pool:
        """All samples, standardized."""
        pool = self.read_images(source)
        return replace(pool, inputs=(standardize(pool.inputs[0], self.mean, self.std),))

    def federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """Distribute the samples over clients.

        Bytes are distributed and each client's are standardized afterwards: floats take four times the memory, which is
        then needed only once.
        """
        pool = sampled(self.read_images(source), source.samples, self.name)
        of_bytes = federate(pool, rule, test_fraction=test_fraction, seed=seed, name=self.name)
        del pool
        names, modalities = of_bytes.class_names, of_bytes.modalities
        remaining, clients = list(of_bytes.clients[::-1]), []
        del of_bytes
        while remaining:
            client = remaining.pop()
            clients.append(ClientData(client.id, self._standardized(client.train), self._standardized(client.test)))
        return Federation(clients, self.name, class_names=names, modalities=modalities)

    def _standardized(self, samples: Samples) -> Samples:
        return Samples((standardize(samples.inputs[0], self.mean, self.std),), samples.targets)


def _opened(file: Any) -> Image.Image:
    # warning filters belong to the whole process, so only one thread at a time may change them
    with _warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(file)


def _rgb(image: Image.Image) -> np.ndarray[Any, Any]:
    if image.mode.startswith("I"):
        # 16-bit gray; Pillow would make all but the darkest 256 of 65,536 levels white
        gray = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.mode == "P":
        # converting transparent palettes to RGB directly would warn
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))
