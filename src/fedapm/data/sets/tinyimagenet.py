"""TinyImageNet as published: the folder ``tiny-imagenet-200``, with training and validation pictures pooled."""

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
from fedapm.data.sets.pictures import PictureSet, decode
from fedapm.errors import FedapmError

FOLDER = "tiny-imagenet-200"
SIDE = 64
SUFFIXES = (".jpeg", ".jpg")
NUMBER = re.compile(r"([0-9]{1,18})\.[a-z]+$", re.IGNORECASE)
READERS = 4
"""Threads that read and decode. More would wait for each other."""
BETWEEN_NEWS = 500
"""Pictures that are decoded between two reports of progress."""

SearchResult = list[tuple[int, Path, str]]
"""Of each picture its class, its folder and its name."""


class TinyImageNet(PictureSet):
    """110,000 pictures of 200 classes, or as many as wnids.txt lists."""

    name = "tinyimagenet"
    about = "TinyImageNet, 110,000 pictures of 200 classes; needs --data-root and 8 GB of memory"
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
        """The classes, from the names of folders and the list of validation pictures; no picture is opened."""
        names, found = find(source.folder(self.name))
        return Labels(torch.tensor([target for target, _, _ in found]), names, ("image",))

    def pictures(self, source: Source) -> Pool:
        """Training pictures, then validation pictures; of each the first class first, by the number in their names."""
        names, found = find(source.folder(self.name))
        pixels = np.empty((len(found), SIDE, SIDE, 3), np.uint8)
        with ThreadPoolExecutor(READERS) as readers:
            for start in range(0, len(found), BETWEEN_NEWS):
                paths = [folder / name for _, folder, name in found[start : start + BETWEEN_NEWS]]
                for place, picture in enumerate(readers.map(square, paths), start):
                    pixels[place] = picture
                source.progress("pictures", start + len(paths), len(found))
        targets = torch.tensor([target for target, _, _ in found])
        return Pool(targets, names, ("image",), inputs=(torch.from_numpy(pixels).permute(0, 3, 1, 2),))


def square(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A picture of the one size all have."""
    picture = decode(path)
    if picture.shape != (SIDE, SIDE, 3):
        height, width, _ = picture.shape
        raise FedapmError(f"{path} is {width}×{height} pixels instead of {SIDE}×{SIDE}; it is not TinyImageNet's.")
    return picture


def find(root: Path) -> tuple[tuple[str, ...], SearchResult]:
    """The names of the classes, and all pictures with their classes in an order that never changes."""
    folder = root if root.resolve().name == FOLDER or (root / "wnids.txt").is_file() else root / FOLDER
    wnids = listed(folder / "wnids.txt")
    return named(wnids, folder / "words.txt"), [*trained(wnids, folder / "train"), *validated(wnids, folder / "val")]


def listed(path: Path) -> dict[str, int]:
    """The classes that wnids.txt lists, numbered."""
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


def named(wnids: dict[str, int], path: Path) -> tuple[str, ...]:
    """What words.txt calls each class, the first word of several; the id where it says nothing."""
    words = {}
    if path.is_file():
        for _, line in lines(path):
            wnid, _, meaning = line.partition("\t")
            words[wnid] = meaning.partition(",")[0].strip()
    return tuple(words.get(wnid) or wnid for wnid in wnids)


def trained(wnids: dict[str, int], folder: Path) -> SearchResult:
    """The training pictures, class by class."""
    found: SearchResult = []
    for wnid, target in wnids.items():
        place = folder / wnid / "images"
        names = jpegs(place, f"the pictures of class {wnid} (listed in wnids.txt)")
        found += [(target, place, name) for name in sorted(names, key=by_number)]
    return found


def validated(wnids: dict[str, int], folder: Path) -> SearchResult:
    """The validation pictures, class by class, as val_annotations.txt says what they show."""
    notes, place = folder / "val_annotations.txt", folder / "images"
    names = jpegs(place, "the validation pictures")
    shown: dict[str, int] = {}
    for number, line in lines(notes):
        name, wnid, *_ = (*line.split("\t"), "", "")
        if not wnid:
            raise FedapmError(f"{notes}, line {number} should be a picture, a tab and its class, not {line[:80]!r}.")
        if name not in names:
            raise FedapmError(f"{notes}, line {number}: {name[:80]!r} is missing in {place}.")
        if wnid not in wnids:
            raise FedapmError(f"{notes}, line {number}: the class {wnid[:80]!r} is not in wnids.txt.")
        if name in shown:
            raise FedapmError(f"{notes}, line {number}: {name!r} has a line already; remove one of the two.")
        shown[name] = wnids[wnid]
    if silent := sorted(names - shown.keys()):
        raise FedapmError(f"{notes} does not say what {silent[0]!r} shows; it is cut off or of another set.")
    ordered = sorted(shown.items(), key=lambda item: (item[1], by_number(item[0])))
    return [(target, place, name) for name, target in ordered]


def jpegs(folder: Path, what: str) -> set[str]:
    """The names of the pictures in a folder, without what file managers leave there."""
    if not folder.is_dir():
        raise FedapmError(f"{folder} is missing, which should hold {what}; unpack tiny-imagenet-200.zip again.")
    with os.scandir(folder) as entries:
        names = {e.name for e in entries if e.name.lower().endswith(SUFFIXES) and not e.name.startswith(".")}
    if not names:
        raise FedapmError(f"{folder} is empty, but should hold {what}; unpack tiny-imagenet-200.zip again.")
    return names


def by_number(name: str) -> tuple[int, str]:
    """Sorts n02124075_10.JPEG after n02124075_9.JPEG."""
    digits = NUMBER.search(name)
    return int(digits[1]) if digits else -1, name


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not empty, and their numbers."""
    if not path.is_file():
        raise FedapmError(
            f"{path} is missing; unpack tiny-imagenet-200.zip so that tiny-imagenet-200 is in the data root."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise FedapmError(f"{path} is not text; unpack tiny-imagenet-200.zip again.") from None
    except OSError as error:
        raise FedapmError(f"{path} cannot be read ({error.strerror}); check its permissions.") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.strip()
