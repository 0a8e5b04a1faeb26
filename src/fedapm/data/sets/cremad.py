"""CREMA-D (Cao et al. 2014) as published: actors speak twelve sentences in acted emotions, on video.

Clips that most raters classified as anger, sadness, happiness or neutral are used; clips with another emotion or a tie
are left out.
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

from fedapm.data.dataset import Labels, Pool, Source
from fedapm.data.download import Origin
from fedapm.data.features import audio, cache, video
from fedapm.data.features.images import image_encoder
from fedapm.data.sets.encoded import EncodedSet, ModalityFeatures
from fedapm.errors import FedapmError

PAGE = "https://github.com/CheyneyComputerScience/CREMA-D"
FOLDERS = ("CREMA-D", "crema-d")
AUDIO, VIDEO = "AudioWAV", "VideoFlash"
SUFFIXES = {AUDIO: ".wav", VIDEO: ".flv"}
TABLE = Path("processedResults") / "summaryTable.csv"
COLUMNS = ("FileName", "MultiModalVote")
VOTES = {"A": "anger", "S": "sadness", "H": "happiness", "N": "neutral"}
NAME = re.compile(r"(\d+)_[A-Z]+_[A-Z]+_[A-Z]+", re.ASCII | re.IGNORECASE)
BROKEN = frozenset({"1076_MTI_SAD_XX"})
"""Clips that are listed but hold no audio."""


@dataclass(frozen=True)
class Clip:
    """A selected clip, with the emotion that most raters chose."""

    name: str
    actor: str
    label: int


class CREMAD(EncodedSet):
    """Clips of 91 actors in four emotions, as audio and video."""

    name = "crema-d"
    about = "CREMA-D, acted emotions of 91 speakers as audio and video; needs --data-root and preparation"
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

    def __init__(self, audio_features: audio.Kind = "mfcc") -> None:
        self.audio_features = audio_features

    def read(self, source: Source) -> Pool:
        """All selected clips by name: audio and video frames, and the number of each."""
        features = self.load_features(source)
        inputs = (features["audio"], features["video"], features["audio_length"], features["video_length"])
        return Pool(**_labels(clips(locate(source.folder(self.name)))), inputs=inputs)

    def labels(self, source: Source) -> Labels:
        """Emotions and actors from the table of votes; the clips themselves are not read."""
        return Labels(**_labels(clips(locate(source.folder(self.name)))))

    def features(self, source: Source) -> Sequence[ModalityFeatures]:
        """The features of the audio and of the video of all selected clips."""
        folder = locate(source.folder(self.name))
        selected = clips(folder)
        audio_files, video_files = media(folder, AUDIO, selected), media(folder, VIDEO, selected)
        encoder = image_encoder(source.image_encoder)
        load_encoder = functools.cache(lambda: encoder(fetch_weights=source.fetch_weights))
        return (
            ModalityFeatures(
                f"audio of {self.name}",
                source.feature_folder(self.name),
                items(audio_files),
                audio.settings(self.audio_features),
                lambda some: audio.encode([audio_files[k] for k in some], self.audio_features),
            ),
            ModalityFeatures(
                f"video of {self.name}",
                source.feature_folder(self.name),
                items(video_files),
                video.settings(encoder.settings),
                lambda some: video.encode([video_files[k] for k in some], load_encoder()),
                load_encoder,
                shard=64,
            ),
        )


def locate(root: Path) -> Path:
    """The folder with the published files: the root, or one in it that is named after the data set."""
    for folder in (root, *(root / name for name in FOLDERS)):
        if (folder / TABLE).is_file() or (folder / AUDIO).is_dir():
            return folder
    raise FedapmError(f"{root} holds neither {AUDIO} nor CREMA-D; see how to get it: fedapm data get crema-d.")


def clips(folder: Path) -> list[Clip]:
    """The selected clips, by name."""
    selected: dict[str, Clip] = {}
    order = list(VOTES)
    for line, name, vote in votes(folder / TABLE):
        parts = NAME.fullmatch(name)
        if parts is None:
            raise FedapmError(
                f"{folder / TABLE}, line {line}: {name[:40]!r} is no clip's name such as 1001_DFA_ANG_XX."
            )
        if vote not in VOTES or name in BROKEN:
            continue
        clip = Clip(name, actor=parts[1], label=order.index(vote))
        if selected.setdefault(name, clip) != clip:
            raise FedapmError(f"{folder / TABLE}, line {line}: {name} is listed twice, with different votes.")
    if not selected:
        raise FedapmError(f"{folder / TABLE} lists no clip with one of the votes {', '.join(VOTES)}; fetch it again.")
    return [selected[name] for name in sorted(selected)]


def votes(path: Path) -> Iterator[tuple[int, str, str]]:
    """The rows of the table: line number, clip, and the emotion that most raters chose."""
    audio.check_media(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise FedapmError(f"{path} has no column {missing[0]}, so it is not CREMA-D's table; fetch it again.")
            for row in rows:
                name, vote = (row[column] for column in COLUMNS)
                if name is None or vote is None:
                    raise FedapmError(f"{path}, line {rows.line_num}: the line is cut off; fetch the file again.")
                yield rows.line_num, name.strip(), vote.strip()
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise FedapmError(f"{path} cannot be read as a table ({reason}); fetch it again.") from None


def media(folder: Path, kind: str, selected: Sequence[Clip]) -> list[Path]:
    """The files of all clips in one of the folders; an error if one is missing."""
    if not (folder / kind).is_dir():
        raise FedapmError(f"{folder / kind} is missing; CREMA-D needs {AUDIO} and {VIDEO}: fedapm data get crema-d.")
    paths = [folder / kind / f"{clip.name}{SUFFIXES[kind]}" for clip in selected]
    for path in paths:
        if not path.is_file():
            raise FedapmError(f"{path} is missing, though {TABLE.name} lists it; run 'git lfs pull' in {folder}.")
        audio.check_media(path)
    return paths


def items(paths: Sequence[Path]) -> list[cache.Item]:
    """Files as items of the feature cache."""
    return [cache.file_item(f"{path.parent.name}/{path.name}", path) for path in paths]


def _labels(selected: Sequence[Clip]) -> dict[str, Any]:
    return {
        "targets": torch.tensor([clip.label for clip in selected]),
        "classes": tuple(VOTES.values()),
        "modalities": ("audio", "video"),
        "owners": np.array([clip.actor for clip in selected]),
    }
