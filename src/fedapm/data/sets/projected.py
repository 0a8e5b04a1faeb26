"""Features of encoders reduced by principal components that are computed from samples of no client."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedapm.data.dataset import Labels, Pool, Source, federate, sample_order
from fedapm.data.features.projection import project
from fedapm.data.federation import Federation
from fedapm.data.partition import PartitionRule
from fedapm.data.sets.encoded import EncodedSet
from fedapm.errors import FedapmError

Array = np.ndarray[Any, Any]


class ProjectedSet(EncodedSet):
    """A version of a data set, to be put before its class among a class's bases.

    The first samples in the order of ``data.samples`` belong to no client: the principal components and the scale are
    computed from them, so that nothing of a client's data, and nothing of its test data, is in the features of another
    sample.
    """

    fitted: ClassVar[int]
    """The number of samples that belong to no client."""

    def labels(self, source: Source) -> Labels:
        """Classes and owners of the clients' samples."""
        whole = super().labels(source)
        used = np.sort(self.order(len(whole.targets), source)[self.fitted :])
        owners = None if whole.owners is None else whole.owners[used]
        return Labels(whole.targets[torch.as_tensor(used)], whole.classes, whole.modalities, owners)

    def federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """Distribute the features over clients."""
        return federate(self.read(source), rule, test_fraction=test_fraction, seed=seed, name=self.full_name)

    def order(self, count: int, source: Source) -> Array:
        """The positions of all samples that are used: those that belong to no client, then the clients'.

        Args:
            count: How many samples the data set has.
            source: Where the files are, and ``samples``, how many of them clients have.
        """
        return sample_order(self.name, count)[: None if source.samples is None else self.fitted + source.samples]

    def projected(self, whole: Labels, source: Source, **encoded: Tensor) -> Pool:
        """The clients' samples in the published order, with the projections of all features side by side.

        Args:
            whole: Classes and owners of all samples.
            source: Where the files are, and ``feature_dim``, the number of components of each kind of features.
            encoded: Features by what they are of, of all samples that are used, in the order of :meth:`order`.
        """
        for what, features in encoded.items():
            self.check_components(source, features.shape[1], what)
        dim = source.feature_dim
        parts = [project(part[self.fitted :], part[: self.fitted], dim) for part in encoded.values()]
        used = self.order(len(whole.targets), source)[self.fitted :]
        owners = None if whole.owners is None else whole.owners[used]
        pool = Pool(
            whole.targets[torch.as_tensor(used)], whole.classes, whole.modalities, owners, (torch.cat(parts, 1),)
        )
        return pool.at(np.argsort(used))

    def check_components(self, source: Source, width: int, what: str) -> None:
        """Refuse more components than there can be.

        Args:
            source: Where the files are, and ``feature_dim``, the number of components.
            width: The number of features.
            what: What they are of.
        """
        dim = source.feature_dim
        if dim is not None and dim > min(width, self.fitted):
            raise FedapmError(
                f"data.feature_dim = {dim} is too large: {self.features_name} has {width} features of each {what}, and "
                f"components are computed from {self.fitted} samples."
            )
