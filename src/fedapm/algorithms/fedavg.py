"""FedAvg: one model for all, the weighted mean of what clients train.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedapm.algorithms.averaging import Averaging
from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.task import Prox, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class FedAvg(Averaging):
    """u_i ← SGD on f_i from ū; u ← Σ α_i u_i / Σ α_i."""

    name = "fedavg"
    label = "FedAvg"
    scope = "whole"
    personal = "nothing"
    sends = "the change of the whole model"
    evaluates = "the global model"
    suits = "clients are alike and one model serves all; the usual baseline"

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps nothing."""
        del u0, v0
        return State()

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Train the whole model from the broadcast one."""
        u = task.minimize(broadcast.u, prox=self.prox(broadcast.u))
        return ClientUpdate(self.upload(u, broadcast.u, task), state, u)

    def prox(self, u_bar: Vec) -> Prox | None:
        """FedAvg has no proximal term."""
        del u_bar
        return None

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The same model for every client."""
        del state, view
        return broadcast.u, Vec()
