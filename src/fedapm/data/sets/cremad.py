"""CREMA-D (Cao et al. 2014) as published: actors speak twelve sentences in acted emotions, on video.

Of the six emotions that raters could name, clips that most of them took for anger, sadness, happiness or neutral are
kept; where the vote is a tie, or another emotion, the clip is left out.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedapm.data.dataset import DataSet, Labels, Pool, Source
from fedapm.data.download import Origin
from fedapm.data.features import audio, cache, video
from fedapm.data.features.images import image_encoder
from fedapm.errors import FedapmError

PAGE = "https://github.com/CheyneyComputerScience/CREMA-D"
FOLDERS = ("CREMA-D", "crema-d")
SOUNDS, FILMS = "AudioWAV", "VideoFlash"
SUFFIXES = {SOUNDS: ".wav", FILMS: ".flv"}
TABLE = Path("processedResults") / "summaryTable.csv"
COLUMNS = ("FileName", "MultiModalVote")
HEARD, SEEN = "sound of crema-d", "video of crema-d"
VOTES = {"A": "anger", "S": "sadness", "H": "happiness", "N": "neutral"}
NAME = re.compile(r"(\d+)_[A-Z]+_[A-Z]+_[A-Z]+", re.ASCII | re.IGNORECASE)
BROKEN = frozenset({"1076_MTI_SAD_XX"})
"""Clips that are listed but hold no sound."""


@dataclass(frozen=True)
class Clip:
    """A clip that is kept, and what raters took it for."""

    name: str
    actor: str
    label: int


class CREMAD(DataSet):
    """Clips of 91 actors in four emotions, as sound and video."""

    name = "crema-d"
    about = "CREMA-D, acted emotions of 91 speakers as sound and video; needs --data-root and preparation"
    encoders = ("image", "audio")
    origin = Origin(
        page=PAGE,
        license="Open Database Licence (ODbL) 1.0",
        layout="CREMA-D with AudioWAV, VideoFlash and processedResults/summaryTable.csv",
        by_hand=(
            f"its media are kept in git-lfs, so install git-lfs and run 'git clone {PAGE}' in the data root, which "
            "makes the folder CREMA-D with AudioWAV, VideoFlash and processedResults in it"
        ),
    )
    defaults = {
        "data": {"partition": "natural", "minimum": 10},
        "model": {"name": "mm-action", "preset": "input"},
        "solver": {"lr": 0.1, "momentum": 0.9, "batch_size": 50},
        "engine": {"fraction": 0.1, "evaluate_every": 5},
    }

    def __init__(self, sound: audio.Kind = "mfcc") -> None:
        self.sound = sound

    def read(self, source: Source) -> Pool:
        """All kept clips by name: sound and frames, and how many frames of each a clip has."""
        folder = located(source.folder(self.name))
        listed = clips(folder)
        home, look = source.feature_folder(self.name), video.settings(image_encoder(source.image_encoder).settings)
        hint = "run: fedapm data prepare crema-d."
        sounds, films = items(media(folder, SOUNDS, listed)), items(media(folder, FILMS, listed))
        heard = cache.load(home, sounds, audio.settings(self.sound), what=HEARD, hint=hint)
        seen = cache.load(home, films, look, what=SEEN, hint=hint)
        inputs = (heard["audio"], seen["video"], heard["audio_length"], seen["video_length"])
        return Pool(**_labels(listed), inputs=inputs)

    def labels(self, source: Source) -> Labels:
        """What the table of votes says; the clips themselves are not looked at."""
        return Labels(**_labels(clips(located(source.folder(self.name)))))

    def prepare(self, source: Source) -> Path:
        """Compute the features of sounds and films."""
        folder = located(source.folder(self.name))
        listed = clips(folder)
        sounds, films = media(folder, SOUNDS, listed), media(folder, FILMS, listed)
        home, kind = source.feature_folder(self.name), image_encoder(source.image_encoder)
        look = video.settings(kind.settings)
        encoder = functools.cache(lambda: kind(fetch_weights=source.fetch_weights))
        if not cache.complete(home, items(films), look):
            # weights that are not there are to be missed now, not after all sounds
            encoder()
        cache.prepare(
            home,
            items(sounds),
            audio.settings(self.sound),
            lambda chosen: audio.encoded([sounds[k] for k in chosen], self.sound),
            what=HEARD,
            progress=source.progress,
        )
        cache.prepare(
            home,
            items(films),
            look,
            lambda chosen: video.encoded([films[k] for k in chosen], encoder()),
            what=SEEN,
            progress=source.progress,
            shard=64,
        )
        return home


def located(root: Path) -> Path:
    """The folder that holds the published files: the root, or one in it that is named after the data set."""
    for place in (root, *(root / name for name in FOLDERS)):
        if (place / TABLE).is_file() or (place / SOUNDS).is_dir():
            return place
    raise FedapmError(f"{root} holds neither {SOUNDS} nor CREMA-D; see how to get it: fedapm data get crema-d.")


def clips(folder: Path) -> list[Clip]:
    """The clips that are kept, by name."""
    found: dict[str, Clip] = {}
    order = list(VOTES)
    for line, name, vote in votes(folder / TABLE):
        parts = NAME.fullmatch(name)
        if parts is None:
            raise FedapmError(f"{folder / TABLE}, line {line}: {name[:40]!r} is no clip's name, as 1001_DFA_ANG_XX is.")
        if vote not in VOTES or name in BROKEN:
            continue
        clip = Clip(name, actor=parts[1], label=order.index(vote))
        if found.setdefault(name, clip) != clip:
            raise FedapmError(f"{folder / TABLE}, line {line}: {name} is there twice, with different votes.")
    if not found:
        raise FedapmError(f"{folder / TABLE} lists no clip with one of the votes {', '.join(VOTES)}; fetch it again.")
    return [found[name] for name in sorted(found)]


def votes(path: Path) -> Iterator[tuple[int, str, str]]:
    """What the table says: the line, the clip, and what most raters took it for."""
    audio.check_media(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            absent = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if absent:
                raise FedapmError(f"{path} has no column {absent[0]}, so it is not CREMA-D's table; fetch it again.")
            for row in rows:
                name, vote = (row[column] for column in COLUMNS)
                if name is None or vote is None:
                    raise FedapmError(f"{path}, line {rows.line_num}: the line is cut off; fetch the file again.")
                yield rows.line_num, name.strip(), vote.strip()
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FedapmError(f"{path} cannot be read as a table ({reason}); fetch it again.") from None


def media(folder: Path, kind: str, listed: Sequence[Clip]) -> list[Path]:
    """The files of all clips in one of the folders, every one of which must be there."""
    if not (folder / kind).is_dir():
        raise FedapmError(f"{folder / kind} is missing; CREMA-D needs {SOUNDS} and {FILMS}: fedapm data get crema-d.")
    paths = [folder / kind / f"{clip.name}{SUFFIXES[kind]}" for clip in listed]
    for path in paths:
        if not path.is_file():
            raise FedapmError(f"{path} is missing, though {TABLE.name} lists it; run 'git lfs pull' in {folder}.")
        audio.check_media(path)
    return paths


def items(paths: Sequence[Path]) -> list[cache.Item]:
    """Files as the cache knows them."""
    return [cache.file_item(f"{path.parent.name}/{path.name}", path) for path in paths]


def _labels(listed: Sequence[Clip]) -> dict[str, Any]:
    return {
        "targets": torch.tensor([clip.label for clip in listed]),
        "classes": tuple(VOTES.values()),
        "modalities": ("audio", "video"),
        "owners": np.array([clip.actor for clip in listed]),
    }
