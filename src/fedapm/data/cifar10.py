"""CIFAR-10 (Krizhevsky 2009) as published: the folder ``cifar-10-batches-bin``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedapm.errors import FedapmError

FOLDER = "cifar-10-batches-bin"
FILES = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
ROW = 1 + 3 * 32 * 32
MEAN = torch.tensor([0.4914, 0.4822, 0.4465])
STD = torch.tensor([0.2470, 0.2435, 0.2616])


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
