"""The paper's network for CREMA-D: a voice and a face, or a voice alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.core.forward import Step
from fedapm.errors import FedapmError
from fedapm.models.attention import AttentionPooling
from fedapm.models.sequences import GRU, Convolutions, inside, modalities


class MMActionClassifier(nn.Module):
    """Sound through 3 convolutions and a GRU 128, video features → GRU 128; both → attention with 6 heads → classes.

    With ``video_dim=0`` it hears and does not see, and is called with sound alone. The paper names no pooling between
    the convolutions, the benchmark it builds on has it; ``pool=1`` turns it off. There is no dropout unless asked for:
    without it a network gives the same output twice, so features can be kept and methods compared to the last digit.
    """

    # these are not of the class alone: without video there is no layer that could be personal, and no step
    stages: Mapping[str, tuple[str, ...]] = {
        "input": ("audio_conv", "video_gru", "audio_gru"),
        "output": ("fc",),
        "head": ("fc",),
    }
    flow: tuple[Step, ...] = (
        Step("sounds", ("audio", "audio_length"), ("audio_conv",)),
        Step("heard", ("sounds",), ("audio_gru",)),
        Step("watched", ("second", "video_length"), ("video_gru",)),
        Step("pooled", ("heard", "audio_length", "watched", "video_length"), ("attention",)),
        Step("scores", ("pooled",), ("fc",)),
    )
    takes = "sound (time, features), and video (frames, features) if there is some"

    def __init__(
        self, classes: int = 4, audio_dim: int = 80, video_dim: int = 1280, pool: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.audio_conv = Convolutions(audio_dim, pool, dropout)
        self.audio_gru = GRU(128, 128)
        self.video_gru = GRU(video_dim, 128) if video_dim else None
        self.attention = AttentionPooling(128, heads=6)
        self.fc = nn.Linear(6 * 128, classes)
        if self.video_gru is None:
            self.stages = {**self.stages, "input": ("audio_conv", "audio_gru")}
            self.flow = (
                Step("sounds", ("audio", "second"), ("audio_conv",)),
                Step("heard", ("sounds",), ("audio_gru",)),
                Step("pooled", ("heard", "second"), ("attention",)),
                Step("scores", ("pooled",), ("fc",)),
            )

    @classmethod
    def fitting(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The sizes that the inputs of one sample need; a ValueError where no size would do."""
        (_, audio_dim), *video = modalities(shapes)
        ((_, video_dim),) = video or [(0, 0)]
        return {"audio_dim": audio_dim, "video_dim": video_dim}

    def forward(
        self,
        audio: Tensor,
        second: Tensor | None = None,
        audio_length: Tensor | None = None,
        video_length: Tensor | None = None,
    ) -> Tensor:
        """Class scores of sound (batch, time, features) and video (batch, frames, features), then both lengths.

        ``second`` is the video, or, in a network without video, the lengths of the sound, and there is no more. Lengths
        may be left out; 0 is a missing modality.
        """
        if self.video_gru is None:
            if audio_length is not None or video_length is not None:
                raise FedapmError("this mm-action network hears only; give it video with model.options.video_dim.")
            return self.scores(self.pooled(self.heard(self.sounds(audio, second)), second))
        if second is None or second.dim() != 3:
            raise FedapmError("this mm-action network needs video too; set model.options.video_dim=0 for sound alone.")
        heard = self.heard(self.sounds(audio, audio_length))
        watched = self.watched(second, video_length)
        return self.scores(self.pooled(heard, audio_length, watched, video_length))

    def sounds(self, audio: Tensor, audio_length: Tensor | None) -> Tensor:
        """The convolved sound."""
        steps: Tensor = self.audio_conv(audio.transpose(1, 2), audio_length)
        return steps

    def heard(self, sounds: Tensor) -> Tensor:
        """The sound's steps, each knowing those before it."""
        return self.audio_gru.over(sounds)

    def watched(self, video: Tensor, video_length: Tensor | None) -> Tensor:
        """The video's frames, each knowing those before it."""
        assert self.video_gru is not None
        return self.video_gru.over(video, video_length)

    def pooled(
        self,
        heard: Tensor,
        audio_length: Tensor | None,
        watched: Tensor | None = None,
        video_length: Tensor | None = None,
    ) -> Tensor:
        """All modalities in one vector."""
        steps, seen = heard, inside(self.audio_conv.left(audio_length), heard)
        if watched is not None:
            steps, seen = torch.cat([steps, watched], 1), torch.cat([seen, inside(video_length, watched)], 1)
        everything: Tensor = self.attention(steps, seen)
        return everything

    def scores(self, pooled: Tensor) -> Tensor:
        """The classifier, a single layer."""
        scores: Tensor = self.fc(pooled)
        return scores
