"""The data sets a run can name, and federations of a user's own data."""

from __future__ import annotations

from fedapm.core.registry import Registry
from fedapm.data.clients import ClientData
from fedapm.data.dataset import DataSet, Labels, Pool, Source
from fedapm.data.federation import Federation
from fedapm.data.partition import IID, Dirichlet, Natural, Overlapping, Partitioner, PartitionRule, Quantity, Shards
from fedapm.data.sets.cifar10 import CIFAR10
from fedapm.data.sets.cifar100 import CIFAR100
from fedapm.data.sets.cremad import CREMAD
from fedapm.data.sets.crisismmd import CrisisMMD
from fedapm.data.sets.digits import Digits
from fedapm.data.sets.kuhar import KUHAR
from fedapm.data.sets.motionsense import MotionSense
from fedapm.data.sets.ravdess import RAVDESS
from fedapm.data.sets.spsw import SPSW
from fedapm.data.sets.tinyimagenet import TinyImageNet
from fedapm.data.sets.tweets import InformativeTweets, Tweets
from fedapm.errors import FedapmError, did_you_mean

DATA_SETS: Registry[type[DataSet]] = Registry(
    "data set",
    "fedapm.data_sets",
    {
        kind.name: kind
        for kind in (
            Digits,
            CIFAR10,
            CIFAR100,
            TinyImageNet,
            CrisisMMD,
            Tweets,
            InformativeTweets,
            KUHAR,
            MotionSense,
            SPSW,
            CREMAD,
            RAVDESS,
        )
    },
)
"""The data sets by name, built in or added through the entry points ``fedapm.data_sets``."""


def data_set(name: str, features: str | None = None) -> DataSet:
    """A data set by its name.

    Args:
        name: A name in :data:`DATA_SETS`.
        features: The version with these features in place of the data set's own inputs, if not None.
    """
    kind = DATA_SETS.find(name)
    if features is None:
        return kind()
    versions = {version.features_name: version for version in kind.feature_versions()}
    if features not in versions:
        hint = did_you_mean(features, [str(known) for known in versions]) if versions else "it has none to choose from."
        raise FedapmError(f"data.features = {features!r}: {name} has no such features; {hint}")
    return versions[features]()


__all__ = [
    "DATA_SETS",
    "IID",
    "ClientData",
    "DataSet",
    "Dirichlet",
    "Federation",
    "Labels",
    "Natural",
    "Overlapping",
    "PartitionRule",
    "Partitioner",
    "Pool",
    "Quantity",
    "Shards",
    "Source",
    "data_set",
]  # fmt: skip
