"""The paper's network for CrisisMMD: a picture's features and a text's, joined by attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedapm.core.forward import Step
from fedapm.models.attention import AttentionPooling
from fedapm.models.dropout import Dropout
from fedapm.models.sequences import GRU, inside, keep, modalities


class ImageTextClassifier(nn.Module):
    """Picture features → fc 64, text features → GRU 64; both → attention with 4 heads → fc 64 → classes.

    The projected picture is one more step after those of the text. There is no dropout unless asked for: without it
    a network gives the same output twice, so features can be kept and methods compared to the last digit.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("image_fc", "text_gru"),
        "output": ("fc1", "fc2"),
        "head": ("fc2",),
    }
    flow: ClassVar[tuple[Step, ...]] = (
        Step("picture", ("image", "image_length"), ("image_fc", "dropout")),
        Step("words", ("text", "text_length"), ("text_gru",)),
        Step("pooled", ("picture", "words", "image_length", "text_length"), ("attention",)),
        Step("hidden", ("pooled",), ("fc1",)),
        Step("scores", ("hidden",), ("dropout", "fc2")),
    )
    takes: ClassVar[str] = "a picture's features (features) and a text's (steps, features)"

    def __init__(self, classes: int = 8, image_dim: int = 1280, text_dim: int = 512, dropout: float = 0.0) -> None:
        super().__init__()
        self.image_fc = nn.Linear(image_dim, 64)
        self.text_gru = GRU(text_dim, 64)
        self.attention = AttentionPooling(64, heads=4)
        self.fc1 = nn.Linear(4 * 64, 64)
        self.fc2 = nn.Linear(64, classes)
        self.dropout = Dropout(dropout)

    @classmethod
    def fitting(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The sizes that the inputs of one sample need; a ValueError where no size would do."""
        (image_dim,), (_, text_dim) = modalities(shapes)
        return {"image_dim": image_dim, "text_dim": text_dim}

    def forward(
        self, image: Tensor, text: Tensor, image_length: Tensor | None = None, text_length: Tensor | None = None
    ) -> Tensor:
        """Class scores of (batch, features) and (batch, steps, features); a length of 0 is a missing modality."""
        picture, words = self.picture(image, image_length), self.words(text, text_length)
        return self.scores(self.hidden(self.pooled(picture, words, image_length, text_length)))

    def picture(self, image: Tensor, image_length: Tensor | None) -> Tensor:
        """The projected picture as a single step."""
        step = image.to(self.image_fc.weight.dtype).unsqueeze(1)
        seen = inside(image_length, step).unsqueeze(-1)
        projected: Tensor = self.dropout(self.image_fc(keep(step, seen)).relu())
        return projected

    def words(self, text: Tensor, text_length: Tensor | None) -> Tensor:
        """The text's steps, each knowing those before it."""
        return self.text_gru.over(text, text_length)

    def pooled(self, picture: Tensor, words: Tensor, image_length: Tensor | None, text_length: Tensor | None) -> Tensor:
        """Both modalities in one vector."""
        seen = torch.cat([inside(text_length, words), inside(image_length, picture)], 1)
        both: Tensor = self.attention(torch.cat([words, picture], 1), seen)
        return both

    def hidden(self, pooled: Tensor) -> Tensor:
        """The classifier's first layer."""
        hidden: Tensor = self.fc1(pooled).relu()
        return hidden

    def scores(self, hidden: Tensor) -> Tensor:
        """The classifier's last layer."""
        scores: Tensor = self.fc2(self.dropout(hidden))
        return scores
