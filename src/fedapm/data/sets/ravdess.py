"""RAVDESS (Livingstone and Russo 2018), the speech part: 24 actors say two sentences in eight emotions.

The data root holds either of two things. The first wins where both are there, because it is what was published.

- The published clips, ``Actor_01/03-01-05-01-01-01-01.wav`` and so on. Their features are computed once, by
  ``fedapm data prepare ravdess``.
- ``ravdess.npz``, log-mel frames that somebody computed already: ``logmel`` (frames of all clips, bands), ``offsets``
  (where each clip begins, and the end), ``actor`` and ``emotion`` of each clip, and ``emotions``, their names. It is
  read as it is, and nothing has to be prepared.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.data.dataset import DataSet, Labels, Pool, Source
from fedapm.data.download import Archive, Origin
from fedapm.data.features import audio, cache
from fedapm.errors import FedapmError

FOLDERS = ("ravdess", "RAVDESS", "Audio_Speech_Actors_01-24")
FRAMES_FILE = "ravdess.npz"
NAME = re.compile(r"(\d\d)-(\d\d)-(\d\d)-(\d\d)-(\d\d)-(\d\d)-(\d\d)", re.ASCII)
SOUND_ONLY, SPEECH = "03", "01"
DESCRIBED = ("offsets", "actor", "emotion", "emotions")
DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, MemoryError, RuntimeError)
WHAT = "sound of ravdess"
EMOTIONS = ("neutral", "calm", "happy", "sad", "angry", "fearful", "disgust", "surprised")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Clip:
    """A published clip of speech."""

    path: Path
    actor: int
    emotion: int


class RAVDESS(DataSet):
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
                # the last folder of the archive, so that one unpacked in part does not pass for all of it
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

    def __init__(self, sound: audio.Kind = "mfcc") -> None:
        self.sound = sound

    def read(self, source: Source) -> Pool:
        """All clips, by the names of their files or in the order of ``ravdess.npz``."""
        found = located(source.folder(self.name))
        if found.is_file():
            content = arrays(found, ("logmel", *DESCRIBED))
            return Pool(**_described(found, content), inputs=padded(found, content))
        listed = clips(found)
        kept = cache.load(
            source.feature_folder(self.name),
            items(listed),
            audio.settings(self.sound),
            what=WHAT,
            hint="run: fedapm data prepare ravdess.",
        )
        return Pool(**_named(listed), inputs=(kept["audio"], kept["audio_length"]))

    def labels(self, source: Source) -> Labels:
        """Emotions and actors alone, without any sound."""
        found = located(source.folder(self.name))
        if found.is_file():
            return Labels(**_described(found, arrays(found, DESCRIBED)))
        return Labels(**_named(clips(found)))

    def prepare(self, source: Source) -> Path | None:
        """Compute the features of the published clips; there is nothing to do for ``ravdess.npz``."""
        found = located(source.folder(self.name))
        if found.is_file():
            return None
        listed = clips(found)
        return cache.prepare(
            source.feature_folder(self.name),
            items(listed),
            audio.settings(self.sound),
            lambda chosen: audio.encoded([listed[k].path for k in chosen], self.sound),
            what=WHAT,
            progress=source.progress,
        )


def located(root: Path) -> Path:
    """The folder with the published clips, or else the file with frames."""
    places = [root, *(root / name for name in FOLDERS)]
    for place in places:
        if any(place.glob("Actor_*")):
            return place
    for place in places:
        if (place / FRAMES_FILE).is_file():
            return place / FRAMES_FILE
    raise FedapmError(
        f"{root} has neither RAVDESS's folders Actor_01, Actor_02, … nor {FRAMES_FILE}; unpack "
        "Audio_Speech_Actors_01-24.zip there, or run: fedapm data get ravdess."
    )


def clips(folder: Path) -> list[Clip]:
    """The published clips of speech, by the names of their files; songs and films are passed over."""
    found: dict[str, Clip] = {}
    for path in sorted(folder.glob("Actor_*/**/*")):
        # macOS leaves files of its own beside the real ones, with names that begin with a dot
        if path.suffix.lower() != ".wav" or path.name.startswith("."):
            continue
        parts = NAME.fullmatch(path.stem)
        if parts is None or not 1 <= int(parts[3]) <= len(EMOTIONS):
            raise FedapmError(
                f"{path} is not named as RAVDESS names its clips (03-01-05-01-01-01-12.wav); take it out of the folder."
            )
        if (parts[1], parts[2]) != (SOUND_ONLY, SPEECH):
            continue
        if path.stem in found:
            raise FedapmError(f"{path} is there twice, also as {found[path.stem].path}; take one of them out.")
        found[path.stem] = Clip(path, actor=int(parts[7]), emotion=int(parts[3]) - 1)
    if not found:
        raise FedapmError(f"{folder} holds no clip of speech (Actor_01/03-01-….wav); fetch the speech part of RAVDESS.")
    return [found[name] for name in sorted(found)]


def items(listed: Sequence[Clip]) -> list[cache.Item]:
    """The clips as the cache knows them: by name, wherever they lie."""
    for clip in listed:
        audio.check_media(clip.path)
    return [cache.file_item(clip.path.name, clip.path) for clip in listed]


def arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Some arrays of an npz file, and never a pickle."""
    try:
        # opened here, because NumPy leaves a file that it finds damaged open
        with path.open("rb") as file:
            kept = np.load(file, allow_pickle=False)
            if not isinstance(kept, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            absent = [name for name in names if name not in kept.files]
            found = {name: kept[name] for name in names if name not in absent}
    except DAMAGE:
        # what NumPy says here advises to trust the file, which is the last thing to do
        raise FedapmError(f"{path} is damaged or no npz file of plain arrays; make or fetch it again.") from None
    if absent:
        raise FedapmError(f"{path} lacks the array {absent[0]!r}; it should hold logmel, {', '.join(DESCRIBED)}.")
    return found


def padded(path: Path, content: Mapping[str, Array]) -> tuple[Tensor, Tensor]:
    """The frames of each clip, standardised like computed ones, and how many each has."""
    frames, offsets = content["logmel"], content["offsets"]
    if frames.dtype.kind != "f" or frames.ndim != 2 or len(frames) != offsets[-1]:
        raise FedapmError(f"{path}: logmel should be numbers in {offsets[-1]} rows, as offsets says; make it again.")
    lengths = np.minimum(np.diff(offsets), audio.FRAMES)
    values = np.zeros((len(lengths), int(lengths.max()), frames.shape[1]), np.float16)
    for k, (start, length) in enumerate(zip(offsets, lengths, strict=False)):
        clip = frames[start : start + length]
        if not np.isfinite(clip).all():
            raise FedapmError(f"{path}: clip {k} has NaN or infinite values; make the file again.")
        values[k, :length] = audio.standardised(clip)
    return torch.from_numpy(values), torch.from_numpy(lengths.astype(np.int64))


def _described(path: Path, content: Mapping[str, Array]) -> dict[str, Any]:
    offsets, actor, emotion, emotions = (content[name] for name in DESCRIBED)
    count = len(offsets) - 1 if offsets.ndim == 1 else 0
    fits = (
        count > 0
        and all(values.dtype.kind in "iu" for values in (offsets, actor, emotion))
        and actor.shape == emotion.shape == (count,)
        and offsets[0] == 0
        and bool((np.diff(offsets.astype(np.int64)) > 0).all())
        and emotions.ndim == 1
        and emotions.dtype.kind == "U"
        and 0 <= int(emotion.min()) <= int(emotion.max()) < len(emotions)
    )
    if not fits:
        raise FedapmError(f"{path}: {', '.join(DESCRIBED)} do not fit together; make the file again.")
    return {
        "targets": torch.from_numpy(emotion.astype(np.int64)),
        "classes": tuple(map(str, emotions)),
        "modalities": ("audio",),
        "owners": np.array([f"{number:02d}" for number in actor.tolist()]),
    }


def _named(listed: Sequence[Clip]) -> dict[str, Any]:
    return {
        "targets": torch.tensor([clip.emotion for clip in listed]),
        "classes": EMOTIONS,
        "modalities": ("audio",),
        "owners": np.array([f"{clip.actor:02d}" for clip in listed]),
    }
