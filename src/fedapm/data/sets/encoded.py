"""Data sets whose inputs are features that frozen encoders compute once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from torch import Tensor

from fedapm.data.dataset import DataSet, Source
from fedapm.data.features import cache


@dataclass(frozen=True)
class ModalityFeatures:
    """The features of one modality: of which items, where they are stored and how they are computed."""

    what: str
    """The features' name in messages, such as "texts of crisismmd"."""
    folder: Path
    items: Sequence[cache.Item]
    settings: dict[str, Any]
    """Everything that determines the features besides the items."""
    encode: cache.Encode
    load_encoder: Callable[[], Any] | None = None
    """Loads the encoder's weights, so that missing weights are reported before long work begins."""
    shard: int = 256
    """How many items are computed and written at a time."""
    prefix: bool = False
    """Whether the items are the first ones of a longer list, of which features of more may be there."""


class EncodedSet(DataSet):
    """A data set whose features are computed by :meth:`prepare` and loaded by :meth:`read`."""

    @abstractmethod
    def features(self, source: Source) -> Sequence[ModalityFeatures]:
        """The features of each modality; empty if the data root holds features already."""

    def prepare(self, source: Source) -> Path | None:
        """Compute the missing features of all modalities."""
        modalities = self.features(source)
        for part in modalities:
            if part.load_encoder is not None and not cache.complete(
                part.folder, part.items, part.settings, part.prefix
            ):
                part.load_encoder()
        for part in modalities:
            cache.prepare(
                part.folder,
                part.items,
                part.settings,
                part.encode,
                what=part.what,
                progress=source.progress,
                shard=part.shard,
                prefix=part.prefix,
            )
        return source.feature_folder(self.name) if modalities else None

    def load_features(self, source: Source) -> dict[str, Tensor]:
        """The computed features of all modalities, by name."""
        advice = f"run: {self._prepare_command(source)}"
        tensors: dict[str, Tensor] = {}
        for part in self.features(source):
            tensors |= cache.load(
                part.folder, part.items, part.settings, what=part.what, advice=advice, prefix=part.prefix
            )
        return tensors

    def _prepare_command(self, source: Source) -> str:
        command = f"fedapm data prepare {self.name} --data-root {quote(str(source.folder(self.name)))}"
        for setting in ("image_encoder", "text_encoder", "cache"):
            value = getattr(source, setting)
            if value != getattr(Source, setting):
                command += f" --{setting.replace('_', '-')} {quote(str(value))}"
        if self.features_name is not None:
            command += f" --set data.features={self.features_name}"
        if source.samples is not None:
            command += f" --set data.samples={source.samples}"
        return command
