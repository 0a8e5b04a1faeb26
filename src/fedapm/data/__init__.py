"""The data sets a run can name, and federations of a user's own data."""

from __future__ import annotations

from fedapm.data.dataset import DataSet, Labels, Pool, Source
from fedapm.data.federation import ClientData, Federation
from fedapm.data.partition import IID, Dirichlet, Natural, Overlapping, Partitioner, Quantity, Rule, Shards
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
from fedapm.errors import FedapmError, did_you_mean

KNOWN: tuple[DataSet, ...] = (
    Digits(),
    CIFAR10(),
    CIFAR100(),
    TinyImageNet(),
    CrisisMMD(),
    KUHAR(),
    MotionSense(),
    SPSW(),
    CREMAD(),
    RAVDESS(),
)
DATA_SETS: dict[str, DataSet] = {known.name: known for known in KNOWN}


def data_set(name: str) -> DataSet:
    """A data set by its name."""
    if name not in DATA_SETS:
        raise FedapmError(f"unknown data set {name!r}; {did_you_mean(name, DATA_SETS)}")
    return DATA_SETS[name]


__all__ = [
    "DATA_SETS", "IID", "ClientData", "DataSet", "Dirichlet", "Federation", "Labels", "Natural", "Overlapping",
    "Partitioner", "Pool", "Quantity", "Rule", "Shards", "Source", "data_set",
]  # fmt: skip
