"""The paper's network for KU-HAR: human activity recognition from an accelerometer and a gyroscope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedapm.core.dropout import Dropout
from fedapm.core.forward import Step
from fedapm.models.attention import AttentionPooling
from fedapm.models.sequences import GRU, Convolutions, step_mask, value_shapes


class HARClassifier(nn.Module):
    """Two sensors, each → 3 convolutions → GRU 128; both → attention with 6 heads → fc 64 → classes.

    The paper mentions no pooling between the convolutions, but the benchmark it builds on has it; ``pool=1`` turns it
    off. Dropout is off by default, so that the same weights always give the same output: features can be cached and
    methods compared to the last digit.

    Args:
        classes: The number of classes.
        axes: The axes of each sensor.
        pool: How many time steps max pooling merges after each convolution.
        dropout: The dropout rate.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("acc_conv", "gyro_conv"),
        "split_input": ("acc_conv",),
        "output": ("fc1", "fc2"),
        "head": ("fc2",),
    }
    forward_steps: ClassVar[tuple[Step, ...]] = (
        Step(output="acc_conv_out", inputs=("acc", "acc_length"), modules=("acc_conv",)),
        Step(output="gyro_conv_out", inputs=("gyro", "gyro_length"), modules=("gyro_conv",)),
        Step(output="acc_gru_out", inputs=("acc_conv_out",), modules=("acc_gru",)),
        Step(output="gyro_gru_out", inputs=("gyro_conv_out",), modules=("gyro_gru",)),
        Step(
            output="attention_out",
            inputs=("acc_gru_out", "gyro_gru_out", "acc_length", "gyro_length"),
            modules=("attention",),
        ),
        Step(output="fc1_out", inputs=("attention_out",), modules=("fc1",)),
        Step(output="logits", inputs=("fc1_out",), modules=("dropout", "fc2")),
    )
    input_description: ClassVar[str] = "the readings of two sensors (axes, time), with as many axes each"

    def __init__(self, classes: int = 8, axes: int = 3, pool: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.acc_conv = Convolutions(axes, pool, dropout)
        self.gyro_conv = Convolutions(axes, pool, dropout)
        self.acc_gru = GRU(128, 128)
        self.gyro_gru = GRU(128, 128)
        self.attention = AttentionPooling(128, heads=6)
        self.fc1 = nn.Linear(6 * 128, 64)
        self.fc2 = nn.Linear(64, classes)
        self.dropout = Dropout(dropout)

    @classmethod
    def arguments_for(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The arguments for samples whose inputs have these shapes; ValueError if there are none."""
        (axes, _), (others, _) = value_shapes(shapes)
        if axes != others:
            raise ValueError(f"one sensor has {axes} axes, the other {others}")
        return {"axes": axes}

    def forward(
        self, acc: Tensor, gyro: Tensor, acc_length: Tensor | None = None, gyro_length: Tensor | None = None
    ) -> Tensor:
        """The logits of two signals (batch, axes, time).

        Lengths are in time steps; 0 means that the sensor is missing, None that all samples are complete.
        """
        acc_gru_out = self.acc_gru_out(self.acc_conv_out(acc, acc_length))
        gyro_gru_out = self.gyro_gru_out(self.gyro_conv_out(gyro, gyro_length))
        return self.logits(self.fc1_out(self.attention_out(acc_gru_out, gyro_gru_out, acc_length, gyro_length)))

    def acc_conv_out(self, acc: Tensor, acc_length: Tensor | None) -> Tensor:
        """The convolved accelerometer signal (batch, steps, 128)."""
        steps: Tensor = self.acc_conv(acc, acc_length)
        return steps

    def gyro_conv_out(self, gyro: Tensor, gyro_length: Tensor | None) -> Tensor:
        """The convolved gyroscope signal (batch, steps, 128)."""
        steps: Tensor = self.gyro_conv(gyro, gyro_length)
        return steps

    def acc_gru_out(self, acc_conv_out: Tensor) -> Tensor:
        """The GRU's states for the accelerometer (batch, steps, 128)."""
        return self.acc_gru.states(acc_conv_out)

    def gyro_gru_out(self, gyro_conv_out: Tensor) -> Tensor:
        """The GRU's states for the gyroscope (batch, steps, 128)."""
        return self.gyro_gru.states(gyro_conv_out)

    def attention_out(
        self, acc_gru_out: Tensor, gyro_gru_out: Tensor, acc_length: Tensor | None, gyro_length: Tensor | None
    ) -> Tensor:
        """Both sensors pooled into one vector."""
        acc_mask = step_mask(self.acc_conv.output_lengths(acc_length), acc_gru_out)
        gyro_mask = step_mask(self.gyro_conv.output_lengths(gyro_length), gyro_gru_out)
        pooled: Tensor = self.attention(torch.cat([acc_gru_out, gyro_gru_out], 1), torch.cat([acc_mask, gyro_mask], 1))
        return pooled

    def fc1_out(self, attention_out: Tensor) -> Tensor:
        """The classifier's first layer."""
        hidden: Tensor = self.fc1(attention_out).relu()
        return hidden

    def logits(self, fc1_out: Tensor) -> Tensor:
        """The classifier's last layer."""
        logits: Tensor = self.fc2(self.dropout(fc1_out))
        return logits
