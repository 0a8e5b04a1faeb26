"""The methods, one small file each; a new one needs its file and one line here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fedapm.algorithm import Algorithm
from fedapm.algorithms.fedalt import FedAlt
from fedapm.algorithms.fedapm import FedAPM
from fedapm.algorithms.fedavg import FedAvg
from fedapm.algorithms.fedprox import FedProx
from fedapm.algorithms.fedsim import FedSim
from fedapm.algorithms.local import Local
from fedapm.errors import FedapmError, did_you_mean

METHODS: dict[str, type[Algorithm]] = {
    method.name: method
    for method in (
        FedAPM,
        FedAlt,
        FedSim,
        FedAvg,
        FedProx,
        Local,
    )
}


def method(name: str) -> type[Algorithm]:
    """A method by its name."""
    if name not in METHODS:
        raise FedapmError(f"unknown method {name!r}; {did_you_mean(name, METHODS)}")
    return METHODS[name]


def hyperparameters(kind: type[Algorithm]) -> dict[str, Any]:
    """A method's hyperparameters with their defaults."""
    return {f.name: f.default for f in fields(kind)}


__all__ = ["METHODS", "FedAPM", "FedAlt", "FedAvg", "FedProx", "FedSim", "Local", "hyperparameters", "method"]
