"""DataSet: a published data set by name, from its files to the samples that are dealt out to clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedapm.core.random import numpy_generator
from fedapm.data.download import Origin, ProgressCallback, no_progress
from fedapm.data.federation import Federation
from fedapm.data.partition import Natural, Rule
from fedapm.errors import FedapmError


@dataclass(frozen=True)
class Source:
    """Where a data set's files are, and how features are made of them."""

    root: Path | None = None
    """The folder that holds the data set's published files."""
    image_encoder: str = "efficientnet-lite0"
    """What turns a picture into features."""
    text_encoder: str = "minilm"
    """What turns a text into features."""
    cache: Path | None = None
    """Where features are kept; the folder fedapm-features in the root if not given."""
    fetch_weights: bool = False
    """Whether an encoder's weights may be downloaded."""
    progress: ProgressCallback = no_progress
    """Called while files are read or features computed."""

    def folder(self, name: str) -> Path:
        """The root, or one line that says it is needed."""
        if self.root is None:
            raise FedapmError(
                f"{name} is not bundled; say where its files are with --data-root (data.root), or see: "
                f"fedapm data get {name}."
            )
        return self.root

    def features(self, name: str) -> Path:
        """Where the features of a data set are kept."""
        return (self.cache or self.folder(name) / "fedapm-features") / name


@dataclass(frozen=True)
class Labels:
    """What is known of all samples before their inputs are read: enough to deal them out."""

    targets: Tensor
    """The class of each sample."""
    classes: tuple[str, ...]
    """The names of the classes, in order."""
    modalities: tuple[str, ...]
    """The name of each kind of input a sample has, such as image and text."""
    owners: np.ndarray[Any, Any] | None = None
    """Whose each sample is by nature: the person, the speaker. None where nobody's."""


@dataclass(frozen=True)
class Pool(Labels):
    """All samples of a data set.

    ``inputs`` are what the network is called with: the values of each modality in order, and, where a modality may be
    missing or of varying length, after all values one column of lengths for each modality. A length of 0 means that
    the modality is missing.
    """

    inputs: tuple[Tensor, ...] = ()


class DataSet(ABC):
    """A data set by name, and the settings that suit it where an experiment is silent."""

    name: ClassVar[str]
    about: ClassVar[str] = ""
    """One line for a list."""
    origin: ClassVar[Origin | None] = None
    """Where it is published; None where it is bundled."""
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Settings for a data set's experiments, by table."""
    encodes: ClassVar[tuple[str, ...]] = ()
    """The kinds of encoder its features need: image, text, audio. Empty where inputs are used as they are."""

    @abstractmethod
    def read(self, source: Source) -> Pool:
        """All samples, in an order that never changes."""

    def labels(self, source: Source) -> Labels:
        """Classes and owners alone, where they can be had without the inputs."""
        return self.read(source)

    def prepare(self, source: Source) -> Path | None:
        """Compute what :meth:`read` needs and keep it; None where there is nothing to compute."""
        del source
        return None

    def federation(self, source: Source, rule: Rule, *, test_fraction: float, seed: int) -> Federation:
        """The samples dealt out to clients."""
        return federate(self.read(source), rule, test_fraction=test_fraction, seed=seed, name=self.name)

    def outline(self, source: Source, rule: Rule, *, test_fraction: float, seed: int) -> Federation:
        """The same clients with their classes alone and, as inputs, positions in the pool; nothing long is read."""
        known = self.labels(source)
        positions = torch.arange(len(known.targets))
        pool = Pool(known.targets, known.classes, known.modalities, known.owners, (positions,))
        return federate(pool, rule, test_fraction=test_fraction, seed=seed, name=self.name)


def federate(pool: Pool, rule: Rule, *, test_fraction: float, seed: int, name: str) -> Federation:
    """Deal a pool out: by a partitioner, or to whom each sample belongs by nature."""
    if isinstance(rule, Natural):
        parts = rule(pool.owners)
    else:
        dealt = rule(pool.targets.numpy(), numpy_generator(seed, "partition"))
        parts = {str(k): part for k, part in enumerate(dealt)}
    return Federation.from_parts(
        pool.inputs,
        pool.targets,
        parts,
        test_fraction=test_fraction,
        seed=seed,
        name=name,
        class_names=pool.classes,
        modalities=pool.modalities,
    )
