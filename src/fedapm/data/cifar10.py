"""CIFAR-10 (Krizhevsky 2009) as published: the folder ``cifar-10-batches-bin``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedapm.data.dataset import DataSet, Pool, Source
from fedapm.data.fetch import Archive, Origin
from fedapm.errors import FedapmError

FOLDER = "cifar-10-batches-bin"
FILES = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
ROW = 1 + 3 * 32 * 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN = torch.tensor([0.4914, 0.4822, 0.4465])
STD = torch.tensor([0.2470, 0.2435, 0.2616])


class CIFAR10(DataSet):
    """60,000 pictures of ten classes."""

    name = "cifar10"
    about = "CIFAR-10, 60,000 pictures of ten classes; needs --data-root"
    origin = Origin(
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="no licence stated; cite Krizhevsky 2009",
        layout="cifar-10-batches-bin",
        archives=(
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                FOLDER,
            ),
        ),
    )
    defaults = {
        "model": {"name": "cnn", "preset": "output"},
        "solver": {"lr": 0.1, "lr_schedule": "exponential", "lr_decay": 0.96, "weight_decay": 0.001},
        "engine": {"evaluate_every": 5},
    }

    def read(self, source: Source) -> Pool:
        """All pictures in the original order."""
        pictures, classes = read(source.folder(self.name))
        return Pool(classes, CLASSES, ("image",), inputs=(pictures,))


def read(root: Path) -> tuple[Tensor, Tensor]:
    """All 60,000 pictures, standardised per channel, and their classes, in the original order."""
    folder = root if root.name == FOLDER else root / FOLDER
    pictures, classes = [], []
    for name in FILES:
        path = folder / name
        if not path.is_file():
            raise FedapmError(
                f"{path} is missing; unpack CIFAR-10's binary version (cifar-10-binary.tar.gz) so that {FOLDER} is "
                "in the data root."
            )
        raw = np.fromfile(path, np.uint8)
        if len(raw) != 10_000 * ROW:
            raise FedapmError(f"{path} has {len(raw)} bytes instead of {10_000 * ROW}; it is cut off or another file.")
        rows = raw.reshape(10_000, ROW)
        if rows[:, 0].max() > 9:
            raise FedapmError(f"{path} holds a class above 9, so it is not CIFAR-10's binary version.")
        classes.append(torch.from_numpy(rows[:, 0].astype(np.int64)))
        pictures.append(torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).copy()))
    scaled = torch.cat(pictures).float().div_(255)
    scaled.sub_(MEAN.view(3, 1, 1)).div_(STD.view(3, 1, 1))
    # channels last in memory is what convolutions on a CPU like best; the shape stays the same
    return scaled.contiguous(memory_format=torch.channels_last), torch.cat(classes)
