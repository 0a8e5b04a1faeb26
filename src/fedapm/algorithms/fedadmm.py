"""FedADMM: one model for all by consensus ADMM with inexact local solutions.

Zhou, Li: Federated Learning via Inexact ADMM. IEEE Transactions on Pattern Analysis and Machine Intelligence, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveFloat

from fedapm.core.algorithm import Aggregate, Algorithm, ClientUpdate, State, Upload
from fedapm.core.search_space import choices, log_range
from fedapm.core.task import Prox, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class FedADMM(Algorithm):
    """w_i ← argmin α_i f_i + ⟨π_i, w_i − w⟩ + ρ/2·‖w_i − w‖²; π_i += ρ(w_i − w); w ← mean of all w_i + π_i/ρ."""

    name = "fedadmm"
    label = "FedADMM"
    scope = "whole"
    cumulative = ("dz",)
    personal = "nothing; kept: the copy w_i and the dual π_i"
    sends = "the change of z_i = w_i + π_i/ρ, whole model"
    evaluates = "the global model"
    search_space = (log_range("algorithm.rho", 0.001, 1.0),)
    search_grid = (choices("algorithm.rho", 0.001, 0.01, 0.02, 0.05, 0.1),)
    grid_units = "paper"
    unit_powers = {"algorithm.rho": -1}

    rho: PositiveFloat = 0.03
    """ρ: penalty on w_i ≠ w."""
    start: Literal["local", "shared"] = "shared"
    """Where the search for w_i starts: at the client's copy, or at the broadcast w."""

    def server_init(self, u0: Vec) -> State:
        """w⁰, the mean of all z_i⁰."""
        return State(u=u0)

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """w_i⁰ = w⁰ and π_i⁰ = 0."""
        del v0
        return State(w=u0, pi=u0.zeros())

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """An inexact minimiser of the augmented Lagrangian, then the dual step."""
        w0 = state.w if self.start == "local" else broadcast.u
        w = task.minimize(w0, weight=task.alpha, linear=state.pi, prox=Prox(self.rho, broadcast.u))
        pi = state.pi + self.rho * (w - broadcast.u)
        dz = (w + pi / self.rho) - (state.w + state.pi / self.rho)
        return ClientUpdate(Upload({"dz": dz}), state.replace(w=w, pi=pi), w)

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The mean of z_i = w_i + π_i/ρ over all clients, kept up to date by changes."""
        return state.replace(u=state.u + total["dz"] / m)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The same model for every client."""
        del state, view
        return broadcast.u, Vec()
