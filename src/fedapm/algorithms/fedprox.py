"""FedProx: FedAvg with a proximal term that keeps clients near the broadcast model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeFloat

from fedapm.algorithms.fedavg import FedAvg
from fedapm.core.search_space import choices, log_range
from fedapm.core.task import Prox
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class FedProx(FedAvg):
    """u_i ← argmin f_i(u) + μ/2·‖u − ū‖²; u ← Σ α_i u_i / Σ α_i."""

    name = "fedprox"
    label = "FedProx"
    suits = "one model serves all, but long local training pulls clients apart"
    search_space = (log_range("algorithm.mu", 0.0001, 1.0),)
    search_grid = (choices("algorithm.mu", 0.001, 0.01, 0.1, 1.0),)
    unit_powers = {"algorithm.mu": -1}

    mu: NonNegativeFloat = 0.1
    """μ: weight of the proximal term."""

    def prox(self, u_bar: Vec) -> Prox | None:
        """μ/2·‖u − ū‖²."""
        return Prox(self.mu, u_bar)
