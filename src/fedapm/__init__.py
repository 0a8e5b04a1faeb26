"""Personalised federated learning that does not drift: FedAPM and the methods it is measured against."""

from __future__ import annotations

from fedapm.algorithms import METHODS, FedAlt, FedAPM, FedAvg, FedProx, FedSim, Local
from fedapm.api import train
from fedapm.core.solver import SGDConfig
from fedapm.core.split import Split, SplitRule
from fedapm.core.vec import Vec
from fedapm.data import IID, ClientData, Dirichlet, Federation, Natural, Quantity, Shards
from fedapm.errors import Diverged, FedapmError, Interrupted
from fedapm.experiments.result import Result
from fedapm.version import __version__

__all__ = [
    "IID",
    "METHODS",
    "ClientData",
    "Dirichlet",
    "Diverged",
    "FedAPM",
    "FedAlt",
    "FedAvg",
    "FedProx",
    "FedSim",
    "FedapmError",
    "Federation",
    "Interrupted",
    "Local",
    "Natural",
    "Quantity",
    "Result",
    "SGDConfig",
    "Shards",
    "Split",
    "SplitRule",
    "Vec",
    "__version__",
    "train",
]
