"""TinyImageNet as published: the folder ``tiny-imagenet-200``, with training and validation images pooled."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from fedapm.data.dataset import Labels, Pool, Source
from fedapm.data.download import Archive, Origin
from fedapm.data.sets.cifar10 import CIFAR10
from fedapm.data.sets.files import read_text
from fedapm.data.sets.images import ImageSet, read_image
from fedapm.errors import FedapmError

FOLDER = "tiny-imagenet-200"
SIDE = 64
SUFFIXES = (".jpeg", ".jpg")
NUMBER = re.compile(r"([0-9]{1,18})\.[a-z]+$", re.IGNORECASE)
READERS = 4
"""Threads that read and decode; more would wait for each other."""
BLOCK = 500
"""Images that are read between two reports of progress."""

ImageList = list[tuple[int, Path, str]]
"""The class, folder and name of each image."""
ADVICE = (
    "unpack tiny-imagenet-200.zip so that tiny-imagenet-200 is in the data root, or run: fedapm data get tinyimagenet"
)


class TinyImageNet(ImageSet):
    """110,000 images of 200 classes, or as many as wnids.txt lists."""

    name = "tinyimagenet"
    about = "TinyImageNet, 110,000 images of 200 classes; needs --data-root and 8 GB of memory"
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)
    origin = Origin(
        page="https://www.kaggle.com/c/tiny-imagenet",
        license="ImageNet's terms: research and teaching only, not commercial",
        layout="tiny-imagenet-200 with wnids.txt, words.txt, train and val",
        archives=(
            Archive(
                "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                FOLDER,
            ),
        ),
    )
    defaults = {
        "data": {"partition": "dirichlet", "concentration": 0.5},
        "model": {"name": "resnet18", "preset": "output"},
        "solver": CIFAR10.defaults["solver"],
        "engine": {"evaluate_every": 10},
    }

    def labels(self, source: Source) -> Labels:
        """The classes, from the names of folders and the list of validation images; no image is opened."""
        names, images = list_images(source.folder(self.name))
        return Labels(torch.tensor([target for target, _, _ in images]), names, ("image",))

    def read_images(self, source: Source) -> Pool:
        """Training images, then validation images, each sorted by class and by the number in the file name."""
        names, images = list_images(source.folder(self.name))
        pixels = np.empty((len(images), SIDE, SIDE, 3), np.uint8)
        with ThreadPoolExecutor(READERS) as readers:
            for start in range(0, len(images), BLOCK):
                paths = [folder / name for _, folder, name in images[start : start + BLOCK]]
                for position, image in enumerate(readers.map(read_square_image, paths), start):
                    pixels[position] = image
                source.progress("images", start + len(paths), len(images))
        targets = torch.tensor([target for target, _, _ in images])
        return Pool(targets, names, ("image",), inputs=(torch.from_numpy(pixels).permute(0, 3, 1, 2),))


def read_square_image(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Read an image, which must be 64×64."""
    image = read_image(path)
    if image.shape != (SIDE, SIDE, 3):
        height, width, _ = image.shape
        raise FedapmError(f"{path} is {width}×{height} pixels instead of {SIDE}×{SIDE}; it is not TinyImageNet's.")
    return image


def list_images(root: Path) -> tuple[tuple[str, ...], ImageList]:
    """The names of the classes, and all images in a fixed order."""
    folder = root if root.resolve().name == FOLDER or (root / "wnids.txt").is_file() else root / FOLDER
    wnids = read_wnids(folder / "wnids.txt")
    images = [*training_images(wnids, folder / "train"), *validation_images(wnids, folder / "val")]
    return class_names(wnids, folder / "words.txt"), images


def read_wnids(path: Path) -> dict[str, int]:
    """The WordNet ids that wnids.txt lists, numbered."""
    wnids: dict[str, int] = {}
    for number, line in lines(path):
        if not line.isalnum():
            raise FedapmError(f"{path}, line {number}: {line[:80]!r} is no WordNet id, such as n02124075.")
        if line in wnids:
            raise FedapmError(f"{path}, line {number}: {line} is listed twice; remove one of the two.")
        wnids[line] = len(wnids)
    if not wnids:
        raise FedapmError(f"{path} lists no class; unpack tiny-imagenet-200.zip again.")
    return wnids


def class_names(wnids: dict[str, int], path: Path) -> tuple[str, ...]:
    """The first name of each class in words.txt; its id if there is none."""
    words = {}
    if path.is_file():
        for _, line in lines(path):
            wnid, _, meaning = line.partition("\t")
            words[wnid] = meaning.partition(",")[0].strip()
    return tuple(words.get(wnid) or wnid for wnid in wnids)


def training_images(wnids: dict[str, int], folder: Path) -> ImageList:
    """The training images, by class and number."""
    images: ImageList = []
    for wnid, target in wnids.items():
        subfolder = folder / wnid / "images"
        names = jpegs(subfolder, f"the images of class {wnid} (listed in wnids.txt)")
        images += [(target, subfolder, name) for name in sorted(names, key=by_number)]
    return images


def validation_images(wnids: dict[str, int], folder: Path) -> ImageList:
    """The validation images, by class (from val_annotations.txt) and number."""
    annotations, subfolder = folder / "val_annotations.txt", folder / "images"
    names = jpegs(subfolder, "the validation images")
    class_of: dict[str, int] = {}
    for number, line in lines(annotations):
        name, wnid, *_ = (*line.split("\t"), "", "")
        if not wnid:
            raise FedapmError(f"{annotations}, line {number} should be an image, a tab and a class, not {line[:80]!r}.")
        if name not in names:
            raise FedapmError(f"{annotations}, line {number}: {name[:80]!r} is missing in {subfolder}.")
        if wnid not in wnids:
            raise FedapmError(f"{annotations}, line {number}: the class {wnid[:80]!r} is not in wnids.txt.")
        if name in class_of:
            raise FedapmError(f"{annotations}, line {number}: {name!r} has a line already; remove one of the two.")
        class_of[name] = wnids[wnid]
    if unlabeled := sorted(names - class_of.keys()):
        raise FedapmError(f"{annotations} has no line for {unlabeled[0]!r}; it is cut off or of another data set.")
    ordered = sorted(class_of.items(), key=lambda item: (item[1], by_number(item[0])))
    return [(target, subfolder, name) for name, target in ordered]


def jpegs(folder: Path, what: str) -> set[str]:
    """The names of the images in a folder."""
    if not folder.is_dir():
        raise FedapmError(f"{folder} is missing, which should hold {what}; unpack tiny-imagenet-200.zip again.")
    with os.scandir(folder) as entries:
        names = {e.name for e in entries if e.name.lower().endswith(SUFFIXES) and not e.name.startswith(".")}
    if not names:
        raise FedapmError(f"{folder} is empty, but should hold {what}; unpack tiny-imagenet-200.zip again.")
    return names


def by_number(name: str) -> tuple[int, str]:
    """A sort key that puts n02124075_10.JPEG after n02124075_9.JPEG."""
    digits = NUMBER.search(name)
    return int(digits[1]) if digits else -1, name


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not empty, and their numbers."""
    for number, line in enumerate(read_text(path, ADVICE).split("\n"), 1):
        if line.strip():
            yield number, line.strip()
