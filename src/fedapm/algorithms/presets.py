"""Methods that are FedSim or FedAlt with a split of their own.

FedPer: Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. 2019.
FedRep: Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning. ICML 2021.
LG-FedAvg: Liang, Liu, Liu, Salakhutdinov, Morency: Think Locally, Act Globally. 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedapm.algorithms.fedalt import FedAlt
from fedapm.algorithms.fedsim import FedSim


@dataclass(frozen=True)
class FedPer(FedSim):
    """FedSim with the output stage personal."""

    name = "fedper"
    label = "FedPer"
    preset = "output"


@dataclass(frozen=True)
class FedRep(FedAlt):
    """FedAlt with the output stage personal."""

    name = "fedrep"
    label = "FedRep"
    preset = "output"


@dataclass(frozen=True)
class LGFedAvg(FedSim):
    """FedSim with the input stage personal."""

    name = "lg-fedavg"
    label = "LG-FedAvg"
    preset = "input"
