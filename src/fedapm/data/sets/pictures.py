"""Pictures: from files of any kind to the numbers a network is given."""

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
from fedapm.data.dataset import DataSet, Pool, Source, federate
from fedapm.data.federation import ClientData, Federation
from fedapm.data.partition import PartitionRule
from fedapm.errors import FedapmError

AT_ONCE = 128
"""Pictures that are standardised at a time: few enough to stay in the processor's cache."""

_warning = threading.Lock()


def decode(path: Path) -> np.ndarray[Any, Any]:
    """A picture as bytes, height × width × red, green, blue, as it is stored: a note on its orientation is ignored."""
    if not path.is_file():
        raise FedapmError(f"{path} is {'not a file' if path.exists() else 'missing'}; put the picture there.")
    try:
        with path.open("rb") as file, _opened(file) as image:
            if image.format == "EPS":
                # Pillow would start Ghostscript on what is a program rather than a picture
                raise FedapmError(f"{path} is PostScript, which is not read; save it as JPEG or PNG.")
            return _rgb(image)
    except FedapmError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        size = str(error).partition(",")[0].removeprefix("Image size ")
        raise FedapmError(f"{path} is too large a picture {size}; make it smaller.") from None
    except UnidentifiedImageError:
        if path.stat().st_size == 0:
            raise FedapmError(f"{path} is empty; fetch the picture again.") from None
        raise FedapmError(f"{path} is not a picture that can be read; fetch it again or save it as JPEG.") from None
    except Exception as error:  # damaged files make Pillow's readers fail in almost every way there is
        reason = (str(error) or type(error).__name__).splitlines()[0].partition(" (")[0]
        raise FedapmError(f"{path} cannot be read as a picture ({reason}); fetch it again.") from None


def standardise(pictures: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bytes (n, 3, h, w) as numbers from 0 to 1, less the mean of each channel and divided by its deviation."""
    count, channels, height, width = pictures.shape
    # channels last in memory is what convolutions on a CPU like best; the shape stays the same
    made = torch.empty(count, height, width, channels)
    rows = made.view(count, height * width * channels)
    center, spread = (torch.tensor(values).repeat(height * width) for values in (mean, std))
    for start in range(0, count, AT_ONCE):
        some = slice(start, start + AT_ONCE)
        made[some] = pictures[some].permute(0, 2, 3, 1)
        rows[some].div_(255).sub_(center).div_(spread)
    return made.permute(0, 3, 1, 2)


class PictureSet(DataSet):
    """A data set whose samples are pictures of one size, given to the network as they are."""

    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]

    @abstractmethod
    def pictures(self, source: Source) -> Pool:
        """All samples, the pictures still as bytes (n, 3, h, w)."""

    def read(self, source: Source) -> Pool:
        """All samples, standardised."""
        pool = self.pictures(source)
        return replace(pool, inputs=(standardise(pool.inputs[0], self.mean, self.std),))

    def federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """The samples dealt out to clients.

        Bytes are dealt out and every client's are standardised afterwards: a quarter of the memory is moved, and the
        numbers, four times as large, are held once rather than twice.
        """
        dealt = federate(self.pictures(source), rule, test_fraction=test_fraction, seed=seed, name=self.name)
        names, modalities = dealt.class_names, dealt.modalities
        clients, made = dealt.clients[::-1], []
        del dealt
        while clients:
            client = clients.pop()
            made.append(ClientData(client.id, self._standardised(client.train), self._standardised(client.test)))
        return Federation(made, self.name, class_names=names, modalities=modalities)

    def _standardised(self, samples: Samples) -> Samples:
        return Samples((standardise(samples.inputs[0], self.mean, self.std),), samples.targets)


def _opened(file: Any) -> Image.Image:
    # filters of warnings belong to the whole process, so only one thread at a time may change them
    with _warning, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(file)


def _rgb(image: Image.Image) -> np.ndarray[Any, Any]:
    if image.mode.startswith("I"):
        # 16 bits of grey; Pillow would turn all but the darkest 256 of its 65,536 levels white
        grey = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode == "P":
        # a palette with transparent colours loses them without a warning only by this way
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))
