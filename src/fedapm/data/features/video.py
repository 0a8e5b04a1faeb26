"""Video features: at most 10 frames, spread evenly over the clip, each encoded by an image encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedapm.data.features import parallel_map
from fedapm.data.features.audio import decode, open_media
from fedapm.data.features.images import Image
from fedapm.errors import FedapmError

FRAMES = 10
BLOCK = 8
"""Clips whose frames are in memory at the same time."""


def settings(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that determines the features besides the videos, given the image encoder's settings."""
    return {**encoder, "video_frames": FRAMES}


def encode(paths: Sequence[Path], encoder: Callable[[Sequence[Image]], Tensor]) -> dict[str, Tensor]:
    """The features ``video`` of some files' frames, padded with zeros, and their numbers ``video_length``."""
    clips: list[Tensor] = []
    for start in range(0, len(paths), BLOCK):
        videos = parallel_map(frames, paths[start : start + BLOCK])
        features = encoder([frame for video in videos for frame in video]).half()
        clips.extend(torch.split(features, [len(video) for video in videos]))
    return {"video": pad_sequence(clips, batch_first=True), "video_length": torch.tensor([len(clip) for clip in clips])}


def frames(path: Path, count: int = FRAMES) -> list[Image]:
    """At most ``count`` frames of a clip, evenly spread; a clip that is cut off is used up to there."""
    # read twice, because the stated length may be missing or wrong, and all frames may not fit in memory
    positions = set(evenly_spaced(sum(1 for _ in _frames(path)), count))
    if not positions:
        raise FedapmError(
            f"{path} holds no frame that can be decoded; it is cut off or broken, so fetch it again or leave it out."
        )
    return [frame.to_ndarray(format="rgb24") for k, frame in enumerate(_frames(path)) if k in positions]


def evenly_spaced(total: int, count: int) -> list[int]:
    """At most ``count`` positions among ``total``: the middles of equally long pieces."""
    pieces = min(total, count)
    return [(2 * k + 1) * total // (2 * pieces) for k in range(pieces)]


def _frames(path: Path) -> Iterator[Any]:
    with open_media(path) as media:
        if not media.streams.video:
            raise FedapmError(f"{path} has no video track; fetch it again or leave it out.")
        yield from decode(media, media.streams.video[0])
