"""CrisisMMD v2.0 (Alam et al. 2018) as published: tweets with images from seven disasters of 2017."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.data.dataset import DataSet, Labels, Pool, Source
from fedapm.data.download import Archive, Origin
from fedapm.data.features import cache
from fedapm.data.features.images import image_encoder
from fedapm.data.features.text import text_encoder
from fedapm.data.sets.encoded import EncodedSet, ModalityFeatures
from fedapm.data.sets.files import read_text
from fedapm.data.sets.images import read_image
from fedapm.data.sets.projected import ProjectedSet
from fedapm.errors import FedapmError, did_you_mean

FOLDER = "CrisisMMD_v2.0"
SPLIT = "crisismmd_datasplit_all"
FILES = [f"task_humanitarian_text_img_{part}.tsv" for part in ("train", "dev", "test")]
COLUMNS = ("image_id", "tweet_text", "image", "label_image", "tweet_id", "label_text")
"""The columns that are used."""
CLASSES = (
    "affected_individuals",
    "infrastructure_and_utility_damage",
    "injured_or_dead_people",
    "missing_or_found_people",
    "not_humanitarian",
    "other_relevant_information",
    "rescue_volunteering_or_donation_effort",
    "vehicle_damage",
)
MODALITIES = ("image", "text")
ADVICE = f"unpack CrisisMMD_v2.0.tar.gz in the data root and {SPLIT}.zip in {FOLDER}, or run: fedapm data get crisismmd"
LINK = re.compile(r"https?://\S*", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """A tweet with one of its images."""

    id: str
    text: str
    """The text of the tweet, without links."""
    image: str
    """The image's path in the data set's folder."""
    label: int
    """The class of the image."""
    location: str
    """The file and the line, for messages."""
    tweet: str
    """The tweet's id."""
    text_label: str
    """The class of the text, as the table has it."""


class CrisisMMD(EncodedSet):
    """18,082 pairs of a tweet's text and an image, classified by the image."""

    name = "crisismmd"
    about = "CrisisMMD, 18,082 tweets with text and image, eight classes; needs --data-root"
    origin = Origin(
        page="https://crisisnlp.qcri.org/crisismmd",
        license="CC BY-NC-SA 4.0; cite Alam, Ofli and Imran 2018",
        layout=f"{FOLDER} with data_image and {SPLIT}",
        archives=(
            Archive(
                "https://crisisnlp.qcri.org/data/crisismmd/CrisisMMD_v2.0.tar.gz",
                None,
                f"{FOLDER}/data_image",
            ),
            Archive(
                "https://crisisnlp.qcri.org/data/crisismmd/crisismmd_datasplit_all.zip",
                None,
                f"{FOLDER}/{SPLIT}",
                unpack_in=FOLDER,
            ),
        ),
    )
    defaults = {
        "data": {"clients": 20, "concentration": 1.0},
        "model": {"name": "image-text", "preset": "input"},
        "solver": {"lr": 0.1, "batch_size": 50},
        "engine": {"evaluate_every": 5},
    }
    encoders = MODALITIES

    @classmethod
    def feature_versions(cls) -> tuple[type[DataSet], ...]:
        """Image and text as one row of numbers."""
        return (CrisisMMDPooled,)

    def labels(self, source: Source) -> Labels:
        """The class and the disaster of each image; images and texts are not read."""
        table = rows(source.folder(self.name))
        return Labels(_targets(table), CLASSES, MODALITIES, _events(table))

    def read(self, source: Source) -> Pool:
        """All pairs in the published order: training, development, test."""
        features = self.load_features(source)
        table = rows(source.folder(self.name))
        targets = _targets(table)
        image_lengths = torch.ones(len(targets), dtype=torch.int64)
        inputs = (features["image"], features["text"], image_lengths, features["length"])
        return Pool(targets, CLASSES, MODALITIES, _events(table), inputs)

    def features(self, source: Source) -> Sequence[ModalityFeatures]:
        """The features of all images and of all texts."""
        root = source.folder(self.name)
        table, folder = rows(root), dataset_folder(root)
        of_images, of_texts = image_encoder(source.image_encoder), text_encoder(source.text_encoder)
        load_images = once(lambda: of_images(fetch_weights=source.fetch_weights))
        load_texts = once(lambda: of_texts(fetch_weights=source.fetch_weights))
        return (
            ModalityFeatures(
                f"images of {self.name}",
                source.feature_folder(self.name) / "image",
                [_image_item(folder, row) for row in table],
                dict(of_images.settings),
                lambda some: {
                    "image": load_images().encode([table[k] for k in some], lambda row: _read_image(folder, row))
                },
                load_images,
            ),
            ModalityFeatures(
                f"texts of {self.name}",
                source.feature_folder(self.name) / "text",
                [cache.text_item(row.id, row.text) for row in table],
                dict(of_texts.settings),
                lambda some: load_texts()([table[k].text for k in some]),
                load_texts,
            ),
        )


class CrisisMMDPooled(ProjectedSet, CrisisMMD):
    """A pair as one row: components of the image's features, then of the mean of the features of the text's tokens."""

    features_name = "pooled"
    fitted = 3000
    defaults = {
        "data": {"clients": 20, "concentration": 1.0, "feature_dim": 64},
        "model": {"name": "mlp", "preset": "output", "options": {"hidden": [64]}},
        "solver": {"lr": 0.05, "batch_size": 20, "weight_decay": 0.005},
    }

    def read(self, source: Source) -> Pool:
        """The rows of the clients' pairs, in the published order."""
        table, features = rows(source.folder(self.name)), self.load_features(source)
        order = torch.as_tensor(self.order(len(table), source))
        text, lengths = features["text"][order].float(), features["length"][order]
        # padding is zero, and a text of links alone has no token
        means = text.sum(1) / lengths.clamp(min=1).unsqueeze(-1)
        whole = Labels(_targets(table), CLASSES, ("image and text",), _events(table))
        return self.projected(whole, source, image=features["image"][order].float(), text=means)


def dataset_folder(root: Path) -> Path:
    """The data set's folder: the root itself, or a folder in it."""
    return root if root.name == FOLDER or (root / SPLIT).is_dir() else root / FOLDER


def rows(root: Path) -> list[Row]:
    """All rows of the three tables, in order."""
    folder = dataset_folder(root) / SPLIT
    return [row for name in FILES for row in _rows(folder / name)]


def without_links(text: str) -> str:
    """A tweet's text without links and repeated spaces."""
    return " ".join(LINK.sub(" ", text).split())


def _rows(path: Path) -> Iterator[Row]:
    # split at line feeds only: tweets hold other characters that str.splitlines takes for line ends
    header, *lines = read_text(path, ADVICE).split("\n")
    columns = header.rstrip("\r").split("\t")
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise FedapmError(
            f"{path}, line 1: the column {missing[0]} is missing; this is not a table of {SPLIT}, unpack "
            f"{SPLIT}.zip again."
        )
    positions = [columns.index(column) for column in COLUMNS]
    has_rows = False
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        fields = line.rstrip("\r").split("\t")
        if len(fields) != len(columns):
            raise FedapmError(
                f"{path}, line {number} has {len(fields)} columns instead of {len(columns)}; it is cut off or was "
                f"edited, unpack {SPLIT}.zip again."
            )
        yield _row([fields[position] for position in positions], f"{path}, line {number}")
        has_rows = True
    if not has_rows:
        raise FedapmError(f"{path} holds no rows; unpack {SPLIT}.zip again.")


def _row(fields: Sequence[str], location: str) -> Row:
    key, text, image, label, tweet, text_label = (field.strip() for field in fields)
    if not label:
        raise FedapmError(f"{location}: label_image is empty; give the row a class or remove it.")
    if label not in CLASSES:
        raise FedapmError(f"{location}: unknown class {label!r} in label_image; {did_you_mean(label, CLASSES)}")
    path = PurePosixPath(image)
    if len(path.parts) < 3 or path.is_absolute() or ".." in path.parts:
        raise FedapmError(f"{location}: the image {image!r} is no path in the data set's folder; repair or remove it.")
    return Row(key, without_links(text), image, CLASSES.index(label), location, tweet, text_label)


def _targets(table: Sequence[Row]) -> Tensor:
    return torch.tensor([row.label for row in table], dtype=torch.int64)


def _events(table: Sequence[Row]) -> np.ndarray[Any, Any]:
    """The disaster that each image is about: the folder below ``data_image``."""
    return np.array([PurePosixPath(row.image).parts[1] for row in table])


def _image_item(folder: Path, row: Row) -> cache.Item:
    try:
        return cache.file_item(row.image, folder / row.image)
    except FedapmError as error:
        raise FedapmError(
            f"{row.location}: the image {str(error).rstrip('.')}; unpack {FOLDER}.tar.gz again."
        ) from None


def _read_image(folder: Path, row: Row) -> Any:
    try:
        return read_image(folder / row.image)
    except FedapmError as error:
        raise FedapmError(f"{row.location}: {error}") from None
