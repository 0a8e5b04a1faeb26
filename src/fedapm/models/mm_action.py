"""The paper's network for CREMA-D: audio and video, or audio alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.core.forward import Step
from fedapm.errors import FedapmError
from fedapm.models.attention import AttentionPooling
from fedapm.models.sequences import GRU, Convolutions, step_mask, value_shapes


class MMActionClassifier(nn.Module):
    """Audio → 3 convolutions → GRU 128, video features → GRU 128; both → attention with 6 heads → classes.

    The paper mentions no pooling between the convolutions, but the benchmark it builds on has it; ``pool=1`` turns it
    off. Dropout is off by default, so that the same weights always give the same output: features can be cached and
    methods compared to the last digit.

    Args:
        classes: The number of classes.
        audio_dim: The features of each audio frame.
        video_dim: The features of each video frame; 0 for a network that is called with audio alone.
        pool: How many time steps max pooling merges after each convolution.
        dropout: The dropout rate.
    """

    # not class variables: a network without video has other stages and steps
    stages: Mapping[str, tuple[str, ...]] = {
        "input": ("audio_conv", "video_gru", "audio_gru"),
        "output": ("fc",),
        "head": ("fc",),
    }
    forward_steps: tuple[Step, ...] = (
        Step(output="audio_conv_out", inputs=("audio", "audio_length"), modules=("audio_conv",)),
        Step(output="audio_gru_out", inputs=("audio_conv_out",), modules=("audio_gru",)),
        Step(output="video_gru_out", inputs=("video_or_length", "video_length"), modules=("video_gru",)),
        Step(
            output="attention_out",
            inputs=("audio_gru_out", "audio_length", "video_gru_out", "video_length"),
            modules=("attention",),
        ),
        Step(output="logits", inputs=("attention_out",), modules=("fc",)),
    )
    input_description = "audio (time, features), optionally followed by video (frames, features)"

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
            self.forward_steps = (
                Step(output="audio_conv_out", inputs=("audio", "video_or_length"), modules=("audio_conv",)),
                Step(output="audio_gru_out", inputs=("audio_conv_out",), modules=("audio_gru",)),
                Step(output="attention_out", inputs=("audio_gru_out", "video_or_length"), modules=("attention",)),
                Step(output="logits", inputs=("attention_out",), modules=("fc",)),
            )

    @classmethod
    def arguments_for(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The arguments for samples whose inputs have these shapes; ValueError if there are none."""
        (_, audio_dim), *video = value_shapes(shapes)
        ((_, video_dim),) = video or [(0, 0)]
        return {"audio_dim": audio_dim, "video_dim": video_dim}

    def forward(
        self,
        audio: Tensor,
        video_or_length: Tensor | None = None,
        audio_length: Tensor | None = None,
        video_length: Tensor | None = None,
    ) -> Tensor:
        """The logits of audio (batch, time, features) and video (batch, frames, features).

        Args:
            audio: The features of the audio frames.
            video_or_length: The features of the video frames; in a network without video, the lengths of the audio.
            audio_length: The number of audio frames of each sample; None if all are complete, 0 if audio is missing.
            video_length: The number of video frames of each sample, likewise.
        """
        if self.video_gru is None:
            if audio_length is not None or video_length is not None:
                raise FedapmError("this mm-action network takes audio alone; add video with model.options.video_dim.")
            audio_gru_out = self.audio_gru_out(self.audio_conv_out(audio, video_or_length))
            return self.logits(self.attention_out(audio_gru_out, video_or_length))
        if video_or_length is None or video_or_length.dim() != 3:
            raise FedapmError("this mm-action network needs video too; set model.options.video_dim=0 for audio alone.")
        audio_gru_out = self.audio_gru_out(self.audio_conv_out(audio, audio_length))
        video_gru_out = self.video_gru_out(video_or_length, video_length)
        return self.logits(self.attention_out(audio_gru_out, audio_length, video_gru_out, video_length))

    def audio_conv_out(self, audio: Tensor, audio_length: Tensor | None) -> Tensor:
        """The convolved audio (batch, steps, 128)."""
        steps: Tensor = self.audio_conv(audio.transpose(1, 2), audio_length)
        return steps

    def audio_gru_out(self, audio_conv_out: Tensor) -> Tensor:
        """The GRU's states for the audio (batch, steps, 128)."""
        return self.audio_gru.states(audio_conv_out)

    def video_gru_out(self, video: Tensor, video_length: Tensor | None) -> Tensor:
        """The GRU's states for the video (batch, frames, 128)."""
        assert self.video_gru is not None
        return self.video_gru.states(video, video_length)

    def attention_out(
        self,
        audio_gru_out: Tensor,
        audio_length: Tensor | None,
        video_gru_out: Tensor | None = None,
        video_length: Tensor | None = None,
    ) -> Tensor:
        """All modalities pooled into one vector."""
        steps, mask = audio_gru_out, step_mask(self.audio_conv.output_lengths(audio_length), audio_gru_out)
        if video_gru_out is not None:
            steps = torch.cat([steps, video_gru_out], 1)
            mask = torch.cat([mask, step_mask(video_length, video_gru_out)], 1)
        pooled: Tensor = self.attention(steps, mask)
        return pooled

    def logits(self, attention_out: Tensor) -> Tensor:
        """The classifier, a single layer."""
        logits: Tensor = self.fc(attention_out)
        return logits
