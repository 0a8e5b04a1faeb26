"""DataSet: a published data set, from its files to the samples that are distributed over clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedapm.core.random import numpy_generator
from fedapm.data.download import Origin, ProgressCallback, no_progress
from fedapm.data.federation import Federation
from fedapm.data.partition import Natural, PartitionRule
from fedapm.errors import FedapmError


@dataclass(frozen=True)
class Source:
    """Where a data set's files are, and how features are computed from them."""

    root: Path | None = None
    """The data root: the folder with the data sets' published files."""
    image_encoder: str = "efficientnet-lite0"
    """The encoder that computes image features."""
    text_encoder: str = "minilm"
    """The encoder that computes text features."""
    cache: Path | None = None
    """The folder for computed features; ``fedapm-features`` in the root if None."""
    samples: int | None = None
    """At most so many samples are used, the same ones in every run; all of them if None."""
    feature_dim: int | None = None
    """The number of features that computed ones are reduced to, where a data set can; all of them if None."""
    fetch_weights: bool = False
    """Whether an encoder's weights may be downloaded."""
    progress: ProgressCallback = no_progress
    """Called while files are read or features computed."""

    def folder(self, name: str) -> Path:
        """The data root; an error if none is given."""
        if self.root is None:
            raise FedapmError(
                f"{name} is not bundled; give the folder with its files by --data-root (data.root), or see: "
                f"fedapm data get {name}."
            )
        return self.root

    def feature_folder(self, name: str) -> Path:
        """The folder for a data set's features."""
        return (self.cache or self.folder(name) / "fedapm-features") / name


@dataclass(frozen=True)
class Labels:
    """What is known of all samples without reading their inputs; enough to partition them."""

    targets: Tensor
    """The class of each sample."""
    classes: tuple[str, ...]
    """The names of the classes, in order."""
    modalities: tuple[str, ...]
    """The name of each modality of a sample, such as image and text."""
    owners: np.ndarray[Any, Any] | None = None
    """The person, speaker or device each sample belongs to; None if samples have no owner."""


@dataclass(frozen=True)
class Pool(Labels):
    """All samples of a data set before they are distributed over clients."""

    inputs: tuple[Tensor, ...] = ()
    """What the network is called with: the values of each modality, in order.

    Where modalities may be missing or vary in length, they are followed by the lengths of each modality; a length of 0
    means that it is missing.
    """

    def at(self, positions: np.ndarray[Any, Any]) -> Pool:
        """The samples at some positions."""
        chosen = torch.as_tensor(positions)
        return replace(
            self,
            targets=self.targets[chosen],
            owners=None if self.owners is None else self.owners[positions],
            inputs=tuple(part[chosen] for part in self.inputs),
        )


def sample_order(name: str, count: int) -> np.ndarray[Any, Any]:
    """The order in which ``data.samples`` takes the samples of a data set.

    It does not depend on a seed, so that a larger number has all samples of a smaller one, and features that were
    computed for one experiment serve another.
    """
    return numpy_generator(0, "samples", name).permutation(count)


def sampled(pool: Pool, samples: int | None, name: str) -> Pool:
    """A random part of a pool, in the pool's order; the pool itself if it has no more samples than that."""
    count = len(pool.targets)
    if samples is None or samples >= count:
        return pool
    return pool.at(np.sort(sample_order(name, count)[:samples]))


class DataSet(ABC):
    """A data set with a name, and the settings that suit it.

    Other packages add data sets by entry points in the group ``fedapm.data_sets``. A subclass sets ``name`` and
    implements :meth:`read`; the rest is optional.
    """

    name: ClassVar[str]
    about: ClassVar[str] = ""
    """One line for a list."""
    origin: ClassVar[Origin | None] = None
    """Where it is published; None if it is bundled."""
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Settings for experiments with this data set, by table; a user's settings take precedence."""
    encoders: ClassVar[tuple[str, ...]] = ()
    """The kinds of encoder its features need: image, text, audio. Empty if inputs are used as they are."""
    features_name: ClassVar[str | None] = None
    """The value of ``data.features`` that stands for this version of a data set; None if it is the data set itself."""

    @property
    def full_name(self) -> str:
        """The name with that of its features, for reports."""
        return self.name if self.features_name is None else f"{self.name} ({self.features_name})"

    @classmethod
    def feature_versions(cls) -> tuple[type[DataSet], ...]:
        """Versions of the data set with features in place of its inputs; ``data.features`` chooses one."""
        return ()

    @abstractmethod
    def read(self, source: Source) -> Pool:
        """Read all samples, always in the same order.

        Args:
            source: Where the files are.

        Raises:
            FedapmError: A file is missing or damaged, or features have not been computed yet.
        """

    def labels(self, source: Source) -> Labels:
        """Read classes and owners, without the inputs where possible."""
        return self.read(source)

    def prepare(self, source: Source) -> Path | None:
        """Compute the features that :meth:`read` needs and store them.

        Returns:
            The folder with the features; None if there is nothing to compute.
        """
        del source
        return None

    def federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """Distribute the samples over clients.

        Args:
            source: Where the files are.
            rule: Which client gets which sample.
            test_fraction: The share of each client's samples that is held out for testing.
            seed: Fixes the partition and the test split.
        """
        pool = sampled(self.read(source), source.samples, self.name)
        return federate(pool, rule, test_fraction=test_fraction, seed=seed, name=self.full_name)

    def index_federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """The same clients as :meth:`federation`, with positions in the pool as inputs; no long file is read."""
        labels = self.labels(source)
        positions = torch.arange(len(labels.targets))
        pool = Pool(labels.targets, labels.classes, labels.modalities, labels.owners, (positions,))
        pool = sampled(pool, source.samples, self.name)
        return federate(pool, rule, test_fraction=test_fraction, seed=seed, name=self.full_name)


def federate(pool: Pool, rule: PartitionRule, *, test_fraction: float, seed: int, name: str) -> Federation:
    """Distribute a pool over clients, by a partitioner or by the samples' owners."""
    if isinstance(rule, Natural):
        parts = rule(pool.owners)
    else:
        partition = rule(pool.targets.numpy(), numpy_generator(seed, "partition"))
        parts = {str(client): positions for client, positions in enumerate(partition)}
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
