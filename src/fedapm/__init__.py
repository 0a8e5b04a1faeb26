"""Personalised federated learning that does not drift: FedAPM and the methods it is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedapm.algorithms import (
    METHODS,
    Ditto,
    FedADMM,
    FedALA,
    FedAlt,
    FedAPM,
    FedAPMPaper,
    FedAvg,
    FedCP,
    FedPer,
    FedProx,
    FedRep,
    FedRoD,
    FedSim,
    LGFedAvg,
    Local,
    LpProj,
    PFedMe,
    Scaffold,
)
from fedapm.api import Comparison, compare, train, tune
from fedapm.core.algorithm import Aggregate, Algorithm, ClientUpdate, State, Stationarity, Upload
from fedapm.core.metrics import METRICS, Metric, Predictions
from fedapm.core.samples import Samples
from fedapm.core.solver import Epochs, Prox, SGDConfig, UntilStationary
from fedapm.core.split import Split, SplitRule
from fedapm.core.task import Task
from fedapm.core.vec import Vec
from fedapm.data import (
    DATA_SETS,
    IID,
    ClientData,
    Dirichlet,
    Federation,
    Natural,
    Overlapping,
    Partitioner,
    Quantity,
    Shards,
)
from fedapm.errors import Diverged, FedapmError, Interrupted, StopRun
from fedapm.experiments.load import LoadedResult, load
from fedapm.experiments.new_client import NewClient
from fedapm.experiments.personalize import personalize
from fedapm.experiments.result import Result
from fedapm.exports.reading import read_about, read_transform
from fedapm.models import MODELS
from fedapm.simulation.early_stopping import EarlyStopping
from fedapm.simulation.loop import Callback
from fedapm.version import __version__

if TYPE_CHECKING:
    from fedapm.api.classifier import FedAPMClassifier

__all__ = [
    "DATA_SETS",
    "IID",
    "METHODS",
    "METRICS",
    "MODELS",
    "Aggregate",
    "Algorithm",
    "Callback",
    "ClientData",
    "ClientUpdate",
    "Comparison",
    "Dirichlet",
    "Ditto",
    "Diverged",
    "EarlyStopping",
    "Epochs",
    "FedADMM",
    "FedALA",
    "FedAPM",
    "FedAPMClassifier",
    "FedAPMPaper",
    "FedAlt",
    "FedAvg",
    "FedCP",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSim",
    "FedapmError",
    "Federation",
    "Interrupted",
    "LGFedAvg",
    "LoadedResult",
    "Local",
    "LpProj",
    "Metric",
    "Natural",
    "NewClient",
    "Overlapping",
    "PFedMe",
    "Partitioner",
    "Predictions",
    "Prox",
    "Quantity",
    "Result",
    "SGDConfig",
    "Samples",
    "Scaffold",
    "Shards",
    "Split",
    "SplitRule",
    "State",
    "Stationarity",
    "StopRun",
    "Task",
    "UntilStationary",
    "Upload",
    "Vec",
    "__version__",
    "compare",
    "load",
    "personalize",
    "read_about",
    "read_transform",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    """FedAPMClassifier, which is imported when it is asked for: scikit-learn takes its time."""
    if name == "FedAPMClassifier":
        from fedapm.api.classifier import FedAPMClassifier

        return FedAPMClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
