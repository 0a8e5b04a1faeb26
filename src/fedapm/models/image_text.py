"""The paper's network for CrisisMMD: image features and text features, combined by attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedapm.core.dropout import Dropout
from fedapm.core.forward import Step
from fedapm.models.attention import AttentionPooling
from fedapm.models.sequences import GRU, masked, step_mask, value_shapes


class ImageTextClassifier(nn.Module):
    """Image features → fc 64, text features → GRU 64; both → attention with 4 heads → fc 64 → classes.

    The projected image is one more step after those of the text. Dropout is off by default, so that the same weights
    always give the same output: features can be cached and methods compared to the last digit.

    Args:
        classes: The number of classes.
        image_dim: The features of an image.
        text_dim: The features of each token of a text.
        dropout: The dropout rate.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("image_fc", "text_gru"),
        "output": ("fc1", "fc2"),
        "head": ("fc2",),
    }
    forward_steps: ClassVar[tuple[Step, ...]] = (
        Step(output="image_fc_out", inputs=("image", "image_length"), modules=("image_fc", "dropout")),
        Step(output="text_gru_out", inputs=("text", "text_length"), modules=("text_gru",)),
        Step(
            output="attention_out",
            inputs=("image_fc_out", "text_gru_out", "image_length", "text_length"),
            modules=("attention",),
        ),
        Step(output="fc1_out", inputs=("attention_out",), modules=("fc1",)),
        Step(output="logits", inputs=("fc1_out",), modules=("dropout", "fc2")),
    )
    input_description: ClassVar[str] = "the features of an image (features) and of a text (steps, features)"

    def __init__(self, classes: int = 8, image_dim: int = 1280, text_dim: int = 512, dropout: float = 0.0) -> None:
        super().__init__()
        self.image_fc = nn.Linear(image_dim, 64)
        self.text_gru = GRU(text_dim, 64)
        self.attention = AttentionPooling(64, heads=4)
        self.fc1 = nn.Linear(4 * 64, 64)
        self.fc2 = nn.Linear(64, classes)
        self.dropout = Dropout(dropout)

    @classmethod
    def arguments_for(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The arguments for samples whose inputs have these shapes; ValueError if there are none."""
        (image_dim,), (_, text_dim) = value_shapes(shapes)
        return {"image_dim": image_dim, "text_dim": text_dim}

    def forward(
        self, image: Tensor, text: Tensor, image_length: Tensor | None = None, text_length: Tensor | None = None
    ) -> Tensor:
        """The logits of an image (batch, features) and a text (batch, steps, features).

        A length of 0 means that the modality is missing, None that all samples are complete.
        """
        image_fc_out, text_gru_out = self.image_fc_out(image, image_length), self.text_gru_out(text, text_length)
        return self.logits(self.fc1_out(self.attention_out(image_fc_out, text_gru_out, image_length, text_length)))

    def image_fc_out(self, image: Tensor, image_length: Tensor | None) -> Tensor:
        """The projected image as a single step (batch, 1, 64)."""
        step = image.to(self.image_fc.weight.dtype).unsqueeze(1)
        mask = step_mask(image_length, step).unsqueeze(-1)
        projected: Tensor = self.dropout(self.image_fc(masked(step, mask)).relu())
        return projected

    def text_gru_out(self, text: Tensor, text_length: Tensor | None) -> Tensor:
        """The GRU's states for the text (batch, steps, 64)."""
        return self.text_gru.states(text, text_length)

    def attention_out(
        self, image_fc_out: Tensor, text_gru_out: Tensor, image_length: Tensor | None, text_length: Tensor | None
    ) -> Tensor:
        """Both modalities pooled into one vector."""
        mask = torch.cat([step_mask(text_length, text_gru_out), step_mask(image_length, image_fc_out)], 1)
        pooled: Tensor = self.attention(torch.cat([text_gru_out, image_fc_out], 1), mask)
        return pooled

    def fc1_out(self, attention_out: Tensor) -> Tensor:
        """The classifier's first layer."""
        hidden: Tensor = self.fc1(attention_out).relu()
        return hidden

    def logits(self, fc1_out: Tensor) -> Tensor:
        """The classifier's last layer."""
        logits: Tensor = self.fc2(self.dropout(fc1_out))
        return logits
