"""FedAPM: partial personalisation by ADMM, which keeps the shared part from drifting.

Zhu, Nie, Zeng, Wang, Sun, Yao, Chen, Xu, Yang: FedAPM: Federated Learning via ADMM with Partial Model
Personalization. KDD 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Lt
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from fedapm.core.algorithm import Aggregate, Algorithm, ClientUpdate, Lagrangian, State, Stationarity, Upload
from fedapm.core.search_space import EPOCHS_V, LR_V, choices, log_range
from fedapm.core.task import Epochs, Prox, StopRule, Task, UntilStationary
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class FedAPM(Algorithm):
    """min Σ α_i f_i(v_i, u_i) s.t. u_i = u, by L_i = α_i f_i + ⟨π_i, u_i − u⟩ + ρ/2·‖u_i − u‖²."""

    name = "fedapm"
    label = "FedAPM"
    cumulative = ("dz",)
    personal = "v_i; also kept: the copy u_i, the dual π_i and ξ_i"
    sends = "the change of z_i = u_i + π_i/ρ, shared part only"
    evaluates = "u_i with v_i (or ū with v_i)"
    search_space = (
        log_range("algorithm.rho", 0.001, 1.0),
        choices("algorithm.sigma", 0.0, 0.003, 0.01, 0.03, 0.1, 0.3),
        EPOCHS_V,
        LR_V,
        choices("algorithm.evaluate", "local", "shared"),
    )
    search_grid = (choices("algorithm.rho", 0.001, 0.01, 0.02, 0.05, 0.1), choices("algorithm.sigma", 0.01))
    grid_units = "paper"
    unit_powers = {"algorithm.lr_v": 1, "algorithm.rho": -1, "algorithm.sigma": -1, "algorithm.xi": -2}

    rho: NonNegativeFloat = 0.03
    """ρ: penalty on u_i ≠ u."""
    sigma: NonNegativeFloat = 0.01
    """σ: weight of the proximal term on v_i."""
    v_at: Literal["local", "shared"] = "shared"
    """Where v_i is solved: at the client's copy u_i, as the paper writes, or at the broadcast ū."""
    u_start: Literal["local", "shared"] = "shared"
    """Where the search for u_i starts: at the client's copy, or at the broadcast ū."""
    evaluate: Literal["local", "shared"] = "local"
    """Which shared part a client's model uses: its copy u_i or ū."""
    relax: Annotated[float, Gt(0), Lt(2)] = 1.0
    """β: over-relaxation. The dual and z_i use ū + β(u_i − ū) in place of u_i; above 1 the server moves more."""
    lr_v: PositiveFloat | None = None
    """Step size of the personal phase; the solver's if not given."""
    epochs_v: NonNegativeInt | None = None
    """Epochs of the personal phase; the solver's if not given."""
    xi: NonNegativeFloat | None = None
    """ξ⁰: solve to a ξ-approximate solution instead of a fixed number of epochs."""
    mu: Annotated[float, Gt(0), Lt(1)] = 0.9
    """μ: ξ ← μ·ξ each time a client takes part."""
    max_epochs: NonNegativeInt = 50
    """Cap on epochs under the ξ-rule."""

    def server_init(self, u0: Vec) -> State:
        """ū⁰, the mean of all z_i⁰ = u⁰."""
        return State(u=u0)

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """v_i⁰, u_i⁰ = u⁰, π_i⁰ = 0, ξ_i⁰; under over-relaxation also z_i⁰ = u⁰, which u_i and π_i do not determine."""
        start = State(v=v0, u=u0, pi=u0.zeros(), xi=self.xi or 0.0)
        return start if self.relax == 1 else start.replace(z=u0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Line 8 of Algorithm 1."""
        u_bar, xi = broadcast.u, self.mu * state.xi
        stop_u: StopRule | None = UntilStationary(xi, self.max_epochs) if self.xi else None
        stop_v = stop_u if self.epochs_v is None else Epochs(self.epochs_v)
        u_for_v = state.u if self.v_at == "local" else u_bar
        u0 = state.u if self.u_start == "local" else u_bar

        v = task.minimize(
            state.v, fixed=u_for_v, weight=task.alpha, prox=Prox(self.sigma, state.v), stop=stop_v, lr=self.lr_v
        )
        u = task.minimize(u0, fixed=v, weight=task.alpha, linear=state.pi, prox=Prox(self.rho, u_bar), stop=stop_u)
        u_hat = u if self.relax == 1 else u_bar + self.relax * (u - u_bar)
        pi = state.pi + self.rho * (u_hat - u_bar)
        z = self.z(u_hat, pi)
        new = state.replace(v=v, u=u, pi=pi, xi=xi, **({} if self.relax == 1 else {"z": z}))
        return ClientUpdate(Upload({"dz": z - self.z_of(state)}), new, u)

    def z_of(self, state: State) -> Vec:
        """The z_i that the server has of a client."""
        return self.z(state.u, state.pi) if self.relax == 1 else state.z

    def z(self, u: Vec, pi: Vec) -> Vec:
        """z_i = u_i + π_i/ρ; without a penalty there is no dual either."""
        return u + pi / self.rho if self.rho else u

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """U = (1/m)·Σ z_i over all clients, kept up to date by the changes of those selected."""
        return state.replace(u=state.u + total["dz"] / m)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """(u_i or ū, v_i)."""
        del view
        return (state.u if self.evaluate == "local" else broadcast.u), state.v

    def stationarity(self, broadcast: State, state: State, task: Task) -> Stationarity:
        """α_i∇_u f_i + π_i + ρ(u_i − u) = 0, ∇_v f_i = 0, u_i = u, Σ π_i = 0."""
        gap = state.u - broadcast.u
        gradient = task.gradient(state.u | state.v)
        g_u, g_v = gradient.only(state.u), gradient.only(state.v)
        return Stationarity(
            {"u": task.alpha * g_u + state.pi + self.rho * gap, "v": g_v, "consensus": gap}, {"dual": state.pi}
        )

    def lagrangian(self, broadcast: State, state: State, task: Task) -> Lagrangian | None:
        """L_i, and the 29/(ρ(1 − μ))·ξ_i that make L̃ of it; without a penalty there is no Lagrangian."""
        if not self.rho:
            return None
        gap = state.u - broadcast.u
        value = task.alpha * task.value(state.u, state.v) + state.pi @ gap + 0.5 * self.rho * gap.sq()
        return Lagrangian(value, 29 * state.xi / (self.rho * (1 - self.mu)), gap.norm(), self.rho)
