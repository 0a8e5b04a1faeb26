"""FedADMM: one model for all by consensus ADMM with inexact local solutions.

Zhou, Li: Federated Learning via Inexact ADMM. IEEE Transactions on Pattern Analysis and Machine Intelligence, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedapm.algorithms.consensus import Consensus
from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.search_space import SearchSpace, choices, log_range
from fedapm.core.task import Prox, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class FedADMM(Consensus):
    """w_i ← argmin α_i f_i + ⟨π_i, w_i − w⟩ + ρ/2·‖w_i − w‖²; π_i += ρ(w_i − w); w ← mean of w_i + π_i/ρ."""

    name = "fedadmm"
    label = "FedADMM"
    scope = "whole"
    personal = "nothing; kept: the copy w_i and the dual π_i"
    sends = "ρ(w_i − w), the change of π_i, whole model"
    evaluates = "the global model"
    suits = "one model serves all and ADMM should find it: FedAPM with nothing personal"
    search_space: ClassVar[SearchSpace] = (log_range("algorithm.kappa", 0.03, 1.0),)
    search_grid: ClassVar[SearchSpace] = (choices("algorithm.kappa", 0.05, 0.1, 0.2, 0.4, 0.8),)

    start: Literal["local", "shared"] = "shared"
    """Where the search for w_i starts: at the client's copy, or at the broadcast w."""

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """w_i⁰ = w⁰, π_i⁰ = 0, and z_i⁰ = w⁰ where the server averages all z_i."""
        del v0
        return State(w=u0, pi=u0.zeros(), **self.z_init(u0))

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """An inexact minimiser of the augmented Lagrangian, then the dual step."""
        rho = self.penalty(broadcast, task)
        w0 = state.w if self.start == "local" else broadcast.u
        w = task.minimize(w0, weight=task.alpha, linear=state.pi, prox=Prox(rho, broadcast.u))
        gap = w - broadcast.u
        pi = state.pi + rho * gap
        z = self.z(w, pi, rho)
        return ClientUpdate(self.upload(state, rho, gap, pi, z, task), state.replace(w=w, pi=pi, **z), w)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The same model for every client."""
        del state, view
        return broadcast.u, Vec()
