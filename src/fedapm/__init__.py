"""Personalised federated learning that does not drift: FedAPM and the methods it is measured against.

Everything below is imported when it is first used: torch takes seconds, and many a program that imports this package
needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedapm.version import __version__

if TYPE_CHECKING:
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
    from fedapm.api.classifier import FedAPMClassifier
    from fedapm.api.compare import Comparison, compare
    from fedapm.api.train import train
    from fedapm.api.tune import tune
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

_HOMES = {
    "algorithms": (
        *("METHODS", "Ditto", "FedADMM", "FedALA", "FedAPM", "FedAPMPaper", "FedAlt", "FedAvg", "FedCP", "FedPer"),
        *("FedProx", "FedRep", "FedRoD", "FedSim", "LGFedAvg", "Local", "LpProj", "PFedMe", "Scaffold"),
    ),
    "api.classifier": ("FedAPMClassifier",),
    "api.compare": ("Comparison", "compare"),
    "api.train": ("train",),
    "api.tune": ("tune",),
    "core.algorithm": ("Aggregate", "Algorithm", "ClientUpdate", "State", "Stationarity", "Upload"),
    "core.metrics": ("METRICS", "Metric", "Predictions"),
    "core.samples": ("Samples",),
    "core.solver": ("Epochs", "Prox", "SGDConfig", "UntilStationary"),
    "core.split": ("Split", "SplitRule"),
    "core.task": ("Task",),
    "core.vec": ("Vec",),
    "data": (
        *("DATA_SETS", "IID", "ClientData", "Dirichlet", "Federation"),
        *("Natural", "Overlapping", "Partitioner", "Quantity", "Shards"),
    ),
    "errors": ("Diverged", "FedapmError", "Interrupted", "StopRun"),
    "experiments.load": ("LoadedResult", "load"),
    "experiments.new_client": ("NewClient",),
    "experiments.personalize": ("personalize",),
    "experiments.result": ("Result",),
    "exports.reading": ("read_about", "read_transform"),
    "models": ("MODELS",),
    "simulation.early_stopping": ("EarlyStopping",),
    "simulation.loop": ("Callback",),
}
_HOME = {name: f"fedapm.{module}" for module, names in _HOMES.items() for name in names}
_PACKAGES = {
    *("algorithms", "api", "core", "data", "errors", "experiments", "exports", "flower", "loggers"),
    *("models", "report", "runs", "simulation", "theory", "tuning"),
}

if not TYPE_CHECKING:  # a type checker reads the imports above, and should know a name that is not there

    def __getattr__(name: str) -> Any:
        """What the package offers, and its sub-packages, imported when they are asked for."""
        if name in _HOME:
            globals()[name] = found = getattr(import_module(_HOME[name]), name)
            return found
        if name in _PACKAGES:
            return import_module(f"fedapm.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
