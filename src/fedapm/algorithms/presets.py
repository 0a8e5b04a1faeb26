"""Methods that are another one with settings of their own: FedSim or FedAlt with a split, FedAPM as published.

FedPer: Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. 2019.
FedRep: Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning. ICML 2021.
LG-FedAvg: Liang, Liu, Liu, Salakhutdinov, Morency: Think Locally, Act Globally. 2020.
FedAPM-paper: Zhu, Nie, Zeng, Wang, Sun, Yao, Chen, Xu, Yang: FedAPM: Federated Learning via ADMM with Partial
Model Personalization. KDD 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from fedapm.algorithms.fedalt import FedAlt
from fedapm.algorithms.fedapm import FedAPM
from fedapm.algorithms.fedsim import FedSim
from fedapm.core.search_space import choices, log_range


@dataclass(frozen=True)
class FedPer(FedSim):
    """FedSim with the output stage personal."""

    name = "fedper"
    label = "FedPer"
    suits = "clients see alike but label differently: FedSim, output stage personal"
    preset = "output"


@dataclass(frozen=True)
class FedRep(FedAlt):
    """FedAlt with the output stage personal."""

    name = "fedrep"
    label = "FedRep"
    suits = "as for FedPer, with the output trained first: FedAlt, output stage personal"
    preset = "output"


@dataclass(frozen=True)
class LGFedAvg(FedSim):
    """FedSim with the input stage personal."""

    name = "lg-fedavg"
    label = "LG-FedAvg"
    suits = "clients have different sensors but the same labels: FedSim, input stage personal"
    preset = "input"


@dataclass(frozen=True)
class FedAPMPaper(FedAPM):
    """FedAPM as published: the mean over all clients, both phases at the client's own copy, the ξ-rule, a fixed ρ."""

    name = "fedapm-paper"
    label = "FedAPM-paper"
    suits = "FedAPM should be as published"
    sends = "the change of z_i = u_i + π_i/ρ, shared part only"
    evaluates = "u_i with v_i (or ū with v_i)"
    search_space = (
        log_range("algorithm.rho", 0.001, 1.0),
        choices("algorithm.sigma", 0.0, 0.003, 0.01, 0.03, 0.1, 0.3),
        choices("algorithm.evaluate", "local", "shared"),
    )
    search_grid = (choices("algorithm.rho", 0.001, 0.01, 0.02, 0.05, 0.1), choices("algorithm.sigma", 0.01))
    grid_units = "paper"

    rho: NonNegativeFloat | Literal["auto", "balanced"] = 0.03
    sigma: NonNegativeFloat | Literal["auto"] = 0.01
    server: Literal["participants", "all"] = "all"
    phases: Literal["auto", "alternating", "joint"] = "alternating"
    v_at: Literal["local", "shared"] = "local"
    u_start: Literal["local", "shared"] = "local"
    evaluate: Literal["local", "shared"] = "local"
    xi: NonNegativeFloat | None = 0.01
    max_epochs: NonNegativeInt = 10
