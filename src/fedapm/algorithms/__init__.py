"""The methods, one small file each; a new one needs its file and one line here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fedapm.algorithms.ditto import Ditto
from fedapm.algorithms.fedadmm import FedADMM
from fedapm.algorithms.fedala import FedALA
from fedapm.algorithms.fedalt import FedAlt
from fedapm.algorithms.fedapm import FedAPM
from fedapm.algorithms.fedavg import FedAvg
from fedapm.algorithms.fedcp import FedCP
from fedapm.algorithms.fedprox import FedProx
from fedapm.algorithms.fedrod import FedRoD
from fedapm.algorithms.fedsim import FedSim
from fedapm.algorithms.local import Local
from fedapm.algorithms.lp_proj import LpProj
from fedapm.algorithms.pfedme import PFedMe
from fedapm.algorithms.presets import FedAPMPaper, FedPer, FedRep, LGFedAvg
from fedapm.algorithms.scaffold import Scaffold
from fedapm.core.algorithm import Algorithm
from fedapm.core.registry import Registry
from fedapm.errors import FedapmError, did_you_mean


def _plugin(name: str, item: Any) -> type[Algorithm]:
    """A method of another package, under the name that its runs record."""
    if not (isinstance(item, type) and issubclass(item, Algorithm)):
        raise FedapmError("it is no subclass of fedapm.Algorithm.")
    if getattr(item, "name", None) != name:
        raise FedapmError(f"its class is called {getattr(item, 'name', None)!r}; give both the same name.")
    return item


METHODS: Registry[type[Algorithm]] = Registry(
    "method",
    "fedapm.methods",
    {
        kind.name: kind
        for kind in (
            FedAPM,
            FedAlt,
            FedSim,
            FedAvg,
            FedProx,
            FedADMM,
            PFedMe,
            Ditto,
            LpProj,
            FedALA,
            FedRoD,
            FedCP,
            Scaffold,
            Local,
        )
    },
    _plugin,
)
"""The methods by name, built in or added through the entry points ``fedapm.methods``."""


PRESETS: dict[str, type[Algorithm]] = {kind.name: kind for kind in (FedAPMPaper, FedPer, FedRep, LGFedAvg)}


def method(name: str) -> type[Algorithm]:
    """A method or named preset by its name."""
    known = METHODS | PRESETS
    if name not in known:
        raise FedapmError(f"unknown method {name!r}; {did_you_mean(name, known)}")
    return known[name]


def rows_of(kind: type[Algorithm]) -> list[str]:
    """The rows a method has in a report: one for each model it is judged by."""
    return [kind.label] if len(kind.views) == 1 else [f"{kind.label}-{view}" for view in kind.views]


def hyperparameters(kind: type[Algorithm]) -> dict[str, Any]:
    """A method's hyperparameters with their defaults."""
    return {f.name: f.default for f in fields(kind)}


__all__ = [
    "METHODS",
    "PRESETS",
    "Ditto",
    "FedADMM",
    "FedALA",
    "FedAPM",
    "FedAPMPaper",
    "FedAlt",
    "FedAvg",
    "FedCP",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSim",
    "LGFedAvg",
    "Local",
    "LpProj",
    "PFedMe",
    "Scaffold",
    "hyperparameters",
    "method",
    "rows_of",
]
