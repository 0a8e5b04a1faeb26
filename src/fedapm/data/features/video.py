"""Video as features: at most 10 frames, spread evenly over the clip, each through an image encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedapm.data.features import side_by_side
from fedapm.data.features.audio import decoded, opened
from fedapm.data.features.images import Picture
from fedapm.errors import FedapmError

FRAMES = 10
AT_ONCE = 8
"""Clips whose frames are in memory together."""


def settings(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Everything the features depend on beside the films, for a cache, given the image encoder's settings."""
    return {**encoder, "video_frames": FRAMES}


def encoded(paths: Sequence[Path], encode: Callable[[Sequence[Picture]], Tensor]) -> dict[str, Tensor]:
    """The features of some files' frames, padded with zeros to the longest, and how many frames each has."""
    clips: list[Tensor] = []
    for start in range(0, len(paths), AT_ONCE):
        films = side_by_side(frames, paths[start : start + AT_ONCE])
        features = encode([picture for film in films for picture in film]).half()
        clips.extend(torch.split(features, [len(film) for film in films]))
    return {"video": pad_sequence(clips, batch_first=True), "video_length": torch.tensor([len(clip) for clip in clips])}


def frames(path: Path, most: int = FRAMES) -> list[Picture]:
    """Some frames of a clip, in order. What a clip that is cut off still holds is used."""
    # read twice, because the length a file states may be missing or wrong, and all frames may not fit in memory
    wanted = set(spread(sum(1 for _ in _pictures(path)), most))
    if not wanted:
        raise FedapmError(
            f"{path} holds no picture that can be decoded; it is cut off or broken, so fetch it again or leave it out."
        )
    return [frame.to_ndarray(format="rgb24") for k, frame in enumerate(_pictures(path)) if k in wanted]


def spread(count: int, most: int) -> list[int]:
    """The positions of at most so many frames out of a number: the middles of equally long pieces."""
    kept = min(count, most)
    return [(2 * k + 1) * count // (2 * kept) for k in range(kept)]


def _pictures(path: Path) -> Iterator[Any]:
    with opened(path) as media:
        if not media.streams.video:
            raise FedapmError(f"{path} has no video track; it is another file than it should be.")
        yield from decoded(media, media.streams.video[0])
