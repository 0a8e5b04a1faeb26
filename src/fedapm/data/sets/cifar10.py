"""CIFAR-10 (Krizhevsky 2009) as published: the folder ``cifar-10-batches-bin`` or ``cifar-10-batches-py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fedapm.data.dataset import DataSet
from fedapm.data.download import Archive, Origin
from fedapm.data.sets.cifar import CIFAR, Layout
from fedapm.data.sets.encoded_images import EncodedImages

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class CIFAR10(CIFAR):
    """60,000 images of ten classes."""

    name = "cifar10"
    about = "CIFAR-10, 60,000 images of ten classes; needs --data-root"
    title = "CIFAR-10"
    binary = Layout("binary", "cifar-10-batches-bin", "cifar-10-binary.tar.gz", ".bin")
    python = Layout("python", "cifar-10-batches-py", "cifar-10-python.tar.gz", "")
    files = {**{f"data_batch_{k}": 10_000 for k in range(1, 6)}, "test_batch": 10_000}
    label_bytes = 1
    label_key = "labels"
    count = len(CLASSES)
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    origin = Origin(
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        license="no licence stated; cite Krizhevsky 2009",
        layout="cifar-10-batches-bin or cifar-10-batches-py",
        archives=(
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                "cifar-10-batches-bin",
            ),
        ),
    )
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "model": {"name": "cnn", "preset": "output"},
        "solver": {"lr": 0.1, "lr_schedule": "exponential", "lr_decay": 0.96, "weight_decay": 0.001},
        "engine": {"evaluate_every": 5},
    }

    @classmethod
    def feature_versions(cls) -> tuple[type[DataSet], ...]:
        """The features of a frozen encoder."""
        return (CIFAR10Features,)

    def class_names(self, folder: Path, layout: Layout) -> tuple[str, ...]:
        """The ten names, which both layouts give in this order."""
        del folder, layout
        return CLASSES


class CIFAR10Features(EncodedImages, CIFAR10):
    """CIFAR-10 through EfficientNet-Lite0: 55,000 images, as 5,000 are used to reduce the features."""
