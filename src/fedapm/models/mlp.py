"""A multilayer perceptron for features that were computed before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn

from fedapm.core.forward import Step


class MLP(nn.Module):
    """Features → stem → body → head, fully connected layers with a ReLU between them.

    Args:
        classes: The number of classes.
        features: The number of features of a sample.
        hidden: The widths of the hidden layers. The first is the stem's, the others are the body's.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("stem",),
        "output": ("head",),
        "head": ("head",),
    }
    forward_steps: ClassVar[tuple[Step, ...]] = (
        Step(output="stem_out", inputs=("features",), modules=("stem",)),
        Step(output="body_out", inputs=("stem_out",), modules=("body",)),
        Step(output="logits", inputs=("body_out",), modules=("head",)),
    )
    input_description: ClassVar[str] = "one row of features (features,)"

    def __init__(self, classes: int = 10, features: int = 54, hidden: tuple[int, ...] = (64, 32)) -> None:
        super().__init__()
        if not hidden:
            raise ValueError("it needs a hidden layer")
        self.stem = nn.Linear(features, hidden[0])
        self.body = nn.Sequential()
        for before, after in pairwise(hidden):
            self.body.extend([nn.Linear(before, after), nn.ReLU()])
        self.head = nn.Linear(hidden[-1], classes)

    @classmethod
    def arguments_for(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The arguments for samples whose inputs have these shapes; ValueError if there are none."""
        ((features,),) = shapes
        return {"features": features}

    def forward(self, features: Tensor) -> Tensor:
        """The logits of samples (batch, features)."""
        return self.logits(self.body_out(self.stem_out(features)))

    def stem_out(self, features: Tensor) -> Tensor:
        """The first hidden layer."""
        hidden: Tensor = self.stem(features).relu()
        return hidden

    def body_out(self, stem_out: Tensor) -> Tensor:
        """The other hidden layers."""
        hidden: Tensor = self.body(stem_out)
        return hidden

    def logits(self, body_out: Tensor) -> Tensor:
        """The last layer."""
        logits: Tensor = self.head(body_out)
        return logits
