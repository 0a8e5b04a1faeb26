"""The paper's network for KU-HAR: what somebody does, from an accelerometer and a gyroscope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedapm.core.forward import Step
from fedapm.models.attention import AttentionPooling
from fedapm.models.dropout import Dropout
from fedapm.models.sequences import GRU, Convolutions, inside, modalities


class HARClassifier(nn.Module):
    """Two sensors, each through 3 convolutions and a GRU 128; both → attention with 6 heads → fc 64 → classes.

    The paper names no pooling between the convolutions, the benchmark it builds on has it; ``pool=1`` turns it off.
    There is no dropout unless asked for: without it a network gives the same output twice, so features can be kept and
    methods compared to the last digit.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("acc_conv", "gyro_conv"),
        "split_input": ("acc_conv",),
        "output": ("fc1", "fc2"),
        "head": ("fc2",),
    }
    flow: ClassVar[tuple[Step, ...]] = (
        Step("moves", ("acc", "acc_length"), ("acc_conv",)),
        Step("turns", ("gyro", "gyro_length"), ("gyro_conv",)),
        Step("moved", ("moves",), ("acc_gru",)),
        Step("turned", ("turns",), ("gyro_gru",)),
        Step("pooled", ("moved", "turned", "acc_length", "gyro_length"), ("attention",)),
        Step("hidden", ("pooled",), ("fc1",)),
        Step("scores", ("hidden",), ("dropout", "fc2")),
    )
    takes: ClassVar[str] = "the readings of two sensors (axes, time), with as many axes each"

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
    def fitting(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The sizes that the inputs of one sample need; a ValueError where no size would do."""
        (axes, _), (others, _) = modalities(shapes)
        if axes != others:
            raise ValueError(f"one sensor has {axes} axes, the other {others}")
        return {"axes": axes}

    def forward(
        self, acc: Tensor, gyro: Tensor, acc_length: Tensor | None = None, gyro_length: Tensor | None = None
    ) -> Tensor:
        """Class scores of two times (batch, axes, time); lengths in time steps, 0 for a missing sensor."""
        moved = self.moved(self.moves(acc, acc_length))
        turned = self.turned(self.turns(gyro, gyro_length))
        return self.scores(self.hidden(self.pooled(moved, turned, acc_length, gyro_length)))

    def moves(self, acc: Tensor, acc_length: Tensor | None) -> Tensor:
        """The convolved accelerometer."""
        steps: Tensor = self.acc_conv(acc, acc_length)
        return steps

    def turns(self, gyro: Tensor, gyro_length: Tensor | None) -> Tensor:
        """The convolved gyroscope."""
        steps: Tensor = self.gyro_conv(gyro, gyro_length)
        return steps

    def moved(self, moves: Tensor) -> Tensor:
        """The accelerometer's steps, each knowing those before it."""
        return self.acc_gru.over(moves)

    def turned(self, turns: Tensor) -> Tensor:
        """The gyroscope's steps, each knowing those before it."""
        return self.gyro_gru.over(turns)

    def pooled(self, moved: Tensor, turned: Tensor, acc_length: Tensor | None, gyro_length: Tensor | None) -> Tensor:
        """Both sensors in one vector."""
        moving = inside(self.acc_conv.left(acc_length), moved)
        turning = inside(self.gyro_conv.left(gyro_length), turned)
        both: Tensor = self.attention(torch.cat([moved, turned], 1), torch.cat([moving, turning], 1))
        return both

    def hidden(self, pooled: Tensor) -> Tensor:
        """The classifier's first layer."""
        hidden: Tensor = self.fc1(pooled).relu()
        return hidden

    def scores(self, hidden: Tensor) -> Tensor:
        """The classifier's last layer."""
        scores: Tensor = self.fc2(self.dropout(hidden))
        return scores
