"""CrisisMMD v2.0 (Alam et al. 2018) as published: tweets with pictures from seven disasters of 2017."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from fedapm.data.dataset import DataSet, Labels, Pool, Source
from fedapm.data.download import Archive, Origin
from fedapm.data.features import cache
from fedapm.data.features.images import image_encoder
from fedapm.data.features.text import text_encoder
from fedapm.data.sets.pictures import decode
from fedapm.errors import FedapmError, did_you_mean

FOLDER = "CrisisMMD_v2.0"
SPLIT = "crisismmd_datasplit_all"
FILES = [f"task_humanitarian_text_img_{part}.tsv" for part in ("train", "dev", "test")]
COLUMNS = ("image_id", "tweet_text", "image", "label_image")
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
LINK = re.compile(r"https?://\S*", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """A tweet with one of its pictures."""

    id: str
    text: str
    """What was written, without links."""
    image: str
    """The picture's path in the data set's folder."""
    label: int
    """The class of the picture."""
    place: str
    """The file and the line."""


class CrisisMMD(DataSet):
    """18,082 pairs of a tweet's text and a picture, by what the picture shows."""

    name = "crisismmd"
    about = "CrisisMMD, 18,082 tweets with text and picture, eight classes; needs --data-root"
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

    def labels(self, source: Source) -> Labels:
        """What each picture shows; pictures and texts are not touched."""
        return Labels(_targets(rows(source.folder(self.name))), CLASSES, MODALITIES)

    def prepare(self, source: Source) -> Path:
        """Compute the features of all pictures and texts."""
        known = rows(source.folder(self.name))
        kinds = self._kinds(source, known)
        for kind in kinds:
            if not cache.complete(kind.folder, kind.items, kind.settings):
                # weights that are missing are better known now than after the other features are done
                kind.encoder()
        for kind in kinds:
            cache.prepare(kind.folder, kind.items, kind.settings, kind.encode, what=kind.what, progress=source.progress)
        return source.feature_folder(self.name)

    def read(self, source: Source) -> Pool:
        """All pairs in the published order: training, development, test."""
        known = rows(source.folder(self.name))
        hint = _hint(self.name, source)
        image, text = (
            cache.load(kind.folder, kind.items, kind.settings, what=kind.what, hint=hint)
            for kind in self._kinds(source, known)
        )
        lengths = torch.ones(len(known), dtype=torch.int64), text["length"]
        return Pool(_targets(known), CLASSES, MODALITIES, inputs=(image["image"], text["text"], *lengths))

    def _kinds(self, source: Source, known: Sequence[Row]) -> tuple[_Kind, _Kind]:
        base = dataset_folder(source.folder(self.name))
        seeing, reading = image_encoder(source.image_encoder), text_encoder(source.text_encoder)
        see = once(lambda: seeing(fetch_weights=source.fetch_weights))
        understand = once(lambda: reading(fetch_weights=source.fetch_weights))
        where = source.feature_folder(self.name)
        return (
            _Kind(
                f"pictures of {self.name}",
                where / "image",
                [_picture(base, row) for row in known],
                dict(seeing.settings),
                see,
                lambda some: {"image": see().encode([known[k] for k in some], lambda row: _decoded(base, row))},
            ),
            _Kind(
                f"texts of {self.name}",
                where / "text",
                [cache.text_item(row.id, row.text) for row in known],
                dict(reading.settings),
                understand,
                lambda some: understand()([known[k].text for k in some]),
            ),
        )


@dataclass(frozen=True)
class _Kind:
    """The features of one modality."""

    what: str
    folder: Path
    items: Sequence[cache.Item]
    settings: dict[str, Any]
    encoder: Callable[[], Any]
    encode: cache.Encode


def dataset_folder(root: Path) -> Path:
    """The data set's own folder, where the root is that folder or holds it."""
    return root if root.name == FOLDER or (root / SPLIT).is_dir() else root / FOLDER


def rows(root: Path) -> list[Row]:
    """All rows of the three files, in order."""
    folder = dataset_folder(root) / SPLIT
    return [row for name in FILES for row in _rows(folder / name)]


def without_links(text: str) -> str:
    """A tweet's text without links, and with single spaces."""
    return " ".join(LINK.sub(" ", text).split())


def _rows(path: Path) -> Iterator[Row]:
    # only line feeds end a row: tweets hold other characters that Python takes for ends of lines
    header, *lines = _text(path).split("\n")
    columns = header.rstrip("\r").split("\t")
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise FedapmError(
            f"{path}, line 1: the column {missing[0]} is missing; this is not a table of {SPLIT}, unpack "
            f"{SPLIT}.zip again."
        )
    places = [columns.index(column) for column in COLUMNS]
    filled = False
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        fields = line.rstrip("\r").split("\t")
        if len(fields) != len(columns):
            raise FedapmError(
                f"{path}, line {number} has {len(fields)} columns instead of {len(columns)}; it is cut off or was "
                f"edited, unpack {SPLIT}.zip again."
            )
        yield _row([fields[place] for place in places], f"{path}, line {number}")
        filled = True
    if not filled:
        raise FedapmError(f"{path} holds no rows; unpack {SPLIT}.zip again.")


def _row(fields: Sequence[str], place: str) -> Row:
    key, text, image, label = (field.strip() for field in fields)
    if not label:
        raise FedapmError(f"{place}: label_image is empty; give the row a class or remove it.")
    if label not in CLASSES:
        raise FedapmError(f"{place}: unknown class {label!r} in label_image; {did_you_mean(label, CLASSES)}")
    path = PurePosixPath(image)
    if not image or path.is_absolute() or ".." in path.parts:
        raise FedapmError(f"{place}: the image {image!r} is not a path in the data set's folder; repair or remove it.")
    return Row(key, without_links(text), image, CLASSES.index(label), place)


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise FedapmError(
            f"{path} is missing; unpack CrisisMMD_v2.0.tar.gz in the data root and {SPLIT}.zip in {FOLDER}, or run: "
            "fedapm data get crisismmd."
        ) from None
    except OSError as error:
        raise FedapmError(f"{path} cannot be read ({error.strerror or error}).") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FedapmError(
            f"{path}, line {line} is not UTF-8; the table was saved in another encoding, unpack {SPLIT}.zip again."
        ) from None


def _targets(known: Sequence[Row]) -> Tensor:
    return torch.tensor([row.label for row in known], dtype=torch.int64)


def _picture(base: Path, row: Row) -> cache.Item:
    try:
        return cache.file_item(row.image, base / row.image)
    except FedapmError as error:
        raise FedapmError(f"{row.place}: the picture {str(error).rstrip('.')}; unpack {FOLDER}.tar.gz again.") from None


def _decoded(base: Path, row: Row) -> Any:
    try:
        return decode(base / row.image)
    except FedapmError as error:
        raise FedapmError(f"{row.place}: {error}") from None


def _hint(name: str, source: Source) -> str:
    """The command that makes the features that are needed."""
    command = f"run: fedapm data prepare {name} --data-root {quote(str(source.folder(name)))}"
    for setting in ("image_encoder", "text_encoder", "cache"):
        value = getattr(source, setting)
        if value != getattr(Source, setting):
            command += f" --{setting.replace('_', '-')} {quote(str(value))}"
    return command
