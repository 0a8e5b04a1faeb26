"""RAVDESS (Livingstone and Russo 2018), the speech part: 24 actors say two sentences in eight emotions.

The data root holds one of two layouts; if both are there, the first is used.

- The published clips, ``Actor_01/03-01-05-01-01-01-01.wav`` and so on. Their features are computed once, by
  ``fedapm data prepare ravdess``.
- ``ravdess.npz``, precomputed log-mel frames: ``logmel`` (frames of all clips, bands), ``offsets`` (the start of each
  clip, and the end of the last), ``actor`` and ``emotion`` of each clip, and ``emotions``, their names. Nothing has to
  be prepared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.data.dataset import DataSet, Labels, Pool, Source
from fedapm.data.download import Archive, Origin
from fedapm.data.features import audio, cache
from fedapm.data.features.statistics import clip_statistics
from fedapm.data.sets.encoded import EncodedSet, ModalityFeatures
from fedapm.data.sets.files import Array, read_npz
from fedapm.errors import FedapmError

FOLDERS = ("ravdess", "RAVDESS", "Audio_Speech_Actors_01-24")
FRAMES_FILE = "ravdess.npz"
NAME = re.compile(r"(\d\d)-(\d\d)-(\d\d)-(\d\d)-(\d\d)-(\d\d)-(\d\d)", re.ASCII)
AUDIO_ONLY, SPEECH = "03", "01"
METADATA = ("offsets", "actor", "emotion", "emotions")
EMOTIONS = ("neutral", "calm", "happy", "sad", "angry", "fearful", "disgust", "surprised")


@dataclass(frozen=True)
class Clip:
    """A published clip of speech."""

    path: Path
    actor: int
    emotion: int


class RAVDESS(EncodedSet):
    """1,440 clips of speech by 24 actors in eight emotions."""

    name = "ravdess"
    about = "RAVDESS, 1,440 clips of speech by 24 actors in eight emotions; needs --data-root"
    encoders = ("audio",)
    origin = Origin(
        page="https://zenodo.org/records/1188976",
        license="CC BY-NC-SA 4.0",
        layout="ravdess with Actor_01 to Actor_24",
        archives=(
            Archive(
                "https://zenodo.org/records/1188976/files/Audio_Speech_Actors_01-24.zip",
                "md5:bc696df654c87fed845eb13823edef8a",
                # the last folder of the archive, so that a partly unpacked one is not taken for complete
                creates="ravdess/Actor_24",
                unpack_in="ravdess",
            ),
        ),
    )
    defaults = {
        "data": {"partition": "natural", "minimum": 10},
        "model": {"name": "mm-action", "preset": "input"},
        "solver": {"lr": 0.1, "momentum": 0.9, "batch_size": 20},
        "engine": {"fraction": 0.3},
    }

    def __init__(self, audio_features: audio.Kind = "mfcc") -> None:
        self.audio_features = audio_features

    @classmethod
    def feature_versions(cls) -> tuple[type[DataSet], ...]:
        """Statistics of the clips."""
        return (RAVDESSStatistics,)

    def read(self, source: Source) -> Pool:
        """All clips, by file name or in the order of ``ravdess.npz``."""
        path = locate(source.folder(self.name))
        if path.is_file():
            arrays = read_npz(path, ("logmel", *METADATA))
            return Pool(**_labels_of_arrays(path, arrays), inputs=pad_frames(path, arrays))
        features = self.load_features(source)
        return Pool(**_labels_of_clips(clips(path)), inputs=(features["audio"], features["audio_length"]))

    def labels(self, source: Source) -> Labels:
        """Emotions and actors, without the audio."""
        path = locate(source.folder(self.name))
        if path.is_file():
            return Labels(**_labels_of_arrays(path, read_npz(path, METADATA)))
        return Labels(**_labels_of_clips(clips(path)))

    def features(self, source: Source) -> Sequence[ModalityFeatures]:
        """The features of the published clips; none for ``ravdess.npz``, which holds features."""
        path = locate(source.folder(self.name))
        if path.is_file():
            return ()
        published = clips(path)
        return (
            ModalityFeatures(
                f"audio of {self.name}",
                source.feature_folder(self.name),
                items(published),
                audio.settings(self.audio_features),
                lambda some: audio.encode([published[k].path for k in some], self.audio_features),
            ),
        )


class RAVDESSStatistics(RAVDESS):
    """Mean, deviation and mean change of each band of a clip in place of its frames."""

    features_name = "statistics"
    defaults = {
        "data": {"partition": "natural", "minimum": 10},
        "model": {"name": "mlp", "preset": "output", "options": {"hidden": [64]}},
        "solver": {"lr": 0.05, "batch_size": 10, "weight_decay": 0.01},
    }

    def __init__(self) -> None:
        super().__init__(audio_features="logmel")

    def read(self, source: Source) -> Pool:
        """The statistics of all clips, in the order of the clips."""
        pool = super().read(source)
        frames, lengths = (part.numpy() for part in pool.inputs)
        return replace(pool, inputs=(torch.from_numpy(clip_statistics(frames, lengths)),))


def locate(root: Path) -> Path:
    """The folder with the published clips, or else the file of precomputed frames."""
    folders = [root, *(root / name for name in FOLDERS)]
    for folder in folders:
        if any(folder.glob("Actor_*")):
            return folder
    for folder in folders:
        if (folder / FRAMES_FILE).is_file():
            return folder / FRAMES_FILE
    raise FedapmError(
        f"{root} has neither RAVDESS's folders Actor_01, Actor_02, … nor {FRAMES_FILE}; unpack "
        "Audio_Speech_Actors_01-24.zip there, or run: fedapm data get ravdess."
    )


def clips(folder: Path) -> list[Clip]:
    """The published clips of speech, by file name; songs and videos are ignored."""
    published: dict[str, Clip] = {}
    for path in sorted(folder.glob("Actor_*/**/*")):
        # macOS adds files whose names begin with a dot
        if path.suffix.lower() != ".wav" or path.name.startswith("."):
            continue
        parts = NAME.fullmatch(path.stem)
        if parts is None or not 1 <= int(parts[3]) <= len(EMOTIONS):
            raise FedapmError(
                f"{path} is not named as RAVDESS names its clips (03-01-05-01-01-01-12.wav); move it elsewhere."
            )
        if (parts[1], parts[2]) != (AUDIO_ONLY, SPEECH):
            continue
        if path.stem in published:
            raise FedapmError(f"{path} is a duplicate of {published[path.stem].path}; remove one of them.")
        published[path.stem] = Clip(path, actor=int(parts[7]), emotion=int(parts[3]) - 1)
    if not published:
        raise FedapmError(f"{folder} holds no clip of speech (Actor_01/03-01-….wav); fetch the speech part of RAVDESS.")
    return [published[name] for name in sorted(published)]


def items(published: Sequence[Clip]) -> list[cache.Item]:
    """The clips as items of the feature cache, named by file without its folder."""
    for clip in published:
        audio.check_media(clip.path)
    return [cache.file_item(clip.path.name, clip.path) for clip in published]


def pad_frames(path: Path, arrays: Mapping[str, Array]) -> tuple[Tensor, Tensor]:
    """The frames of each clip, standardized and padded with zeros, and their numbers."""
    frames, offsets = arrays["logmel"], arrays["offsets"]
    if frames.dtype.kind != "f" or frames.ndim != 2 or len(frames) != offsets[-1]:
        raise FedapmError(f"{path}: logmel should be numbers in {offsets[-1]} rows, as offsets says; create it again.")
    lengths = np.minimum(np.diff(offsets), audio.FRAMES)
    values = np.zeros((len(lengths), int(lengths.max()), frames.shape[1]), np.float16)
    for k, (start, length) in enumerate(zip(offsets, lengths, strict=False)):
        clip = frames[start : start + length]
        if not np.isfinite(clip).all():
            raise FedapmError(f"{path}: clip {k} has NaN or infinite values; create the file again.")
        values[k, :length] = audio.standardize(clip)
    return torch.from_numpy(values), torch.from_numpy(lengths.astype(np.int64))


def _labels_of_arrays(path: Path, arrays: Mapping[str, Array]) -> dict[str, Any]:
    offsets, actor, emotion, emotions = (arrays[name] for name in METADATA)
    count = len(offsets) - 1 if offsets.ndim == 1 else 0
    consistent = (
        count > 0
        and all(values.dtype.kind in "iu" for values in (offsets, actor, emotion))
        and actor.shape == emotion.shape == (count,)
        and offsets[0] == 0
        and bool((np.diff(offsets.astype(np.int64)) > 0).all())
        and emotions.ndim == 1
        and emotions.dtype.kind == "U"
        and 0 <= int(emotion.min()) <= int(emotion.max()) < len(emotions)
    )
    if not consistent:
        raise FedapmError(f"{path}: {', '.join(METADATA)} are inconsistent; create the file again.")
    return {
        "targets": torch.from_numpy(emotion.astype(np.int64)),
        "classes": tuple(map(str, emotions)),
        "modalities": ("audio",),
        "owners": np.array([f"{number:02d}" for number in actor.tolist()]),
    }


def _labels_of_clips(published: Sequence[Clip]) -> dict[str, Any]:
    return {
        "targets": torch.tensor([clip.emotion for clip in published]),
        "classes": EMOTIONS,
        "modalities": ("audio",),
        "owners": np.array([f"{clip.actor:02d}" for clip in published]),
    }
