"""The data sets a run can name, and federations of a user's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.data import cifar10, digits
from fedapm.data.federation import ClientData, Federation
from fedapm.data.partition import IID, Dirichlet, Partitioner, Shards
from fedapm.errors import FedapmError, did_you_mean

Loader = Callable[[Partitioner, Path | None, float, int], Federation]
"""Deals a data set out: partitioner, root folder, test fraction, seed."""


@dataclass(frozen=True)
class DataSet:
    """A data set by name, and the settings that suit it where an experiment is silent."""

    load: Loader
    about: str
    defaults: Mapping[str, Mapping[str, Any]]


def _digits(partitioner: Partitioner, root: Path | None, test_fraction: float, seed: int) -> Federation:
    del root
    return digits.federation(partitioner, test_fraction=test_fraction, seed=seed)


def _cifar10(partitioner: Partitioner, root: Path | None, test_fraction: float, seed: int) -> Federation:
    if root is None:
        raise FedapmError(
            "cifar10 is not bundled; say where its folder cifar-10-batches-bin lies with --data-root (data.root)."
        )
    pictures, classes = cifar10.read(root)
    return Federation.from_arrays(
        pictures, classes, partitioner, test_fraction=test_fraction, seed=seed, name="cifar10"
    )


DATA_SETS: dict[str, DataSet] = {
    "digits": DataSet(
        _digits,
        "1,797 handwritten digits at 20 sites with scanners and code tables of their own; bundled",
        {
            "data": {"concentration": 2.0, "minimum": 20},
            "model": {"name": "digits", "preset": "output"},
            "solver": {"lr": 0.2, "batch_size": 10},
        },
    ),
    "cifar10": DataSet(
        _cifar10,
        "CIFAR-10, 60,000 pictures of ten classes; needs --data-root",
        {
            "model": {"name": "cnn", "preset": "output"},
            "solver": {"lr": 0.1, "lr_schedule": "exponential", "lr_decay": 0.96, "weight_decay": 0.001},
            "engine": {"evaluate_every": 5},
        },
    ),
}


def data_set(name: str) -> DataSet:
    """A data set by its name."""
    if name not in DATA_SETS:
        raise FedapmError(f"unknown data set {name!r}; {did_you_mean(name, DATA_SETS)}")
    return DATA_SETS[name]


__all__ = [
    "DATA_SETS", "IID", "ClientData", "DataSet", "Dirichlet", "Federation", "Partitioner", "Shards", "data_set",
]  # fmt: skip
