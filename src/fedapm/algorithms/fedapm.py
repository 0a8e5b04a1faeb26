"""FedAPM: partial personalisation by ADMM, which keeps the shared part from drifting.

Zhu, Nie, Zeng, Wang, Sun, Yao, Chen, Xu, Yang: FedAPM: Federated Learning via ADMM with Partial Model
Personalization. KDD 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Lt
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from fedapm.algorithms.consensus import Consensus
from fedapm.core.algorithm import Algorithm, ClientUpdate, Lagrangian, State, Stationarity
from fedapm.core.search_space import EPOCHS_V, LR_V, SearchSpace, choices, log_range
from fedapm.core.task import Epochs, Prox, StopRule, Task, UntilStationary
from fedapm.core.vec import Vec

KAPPA_V = 0.01
"""σ·η·K̄ in the personal phase, where σ is not given."""


@dataclass(frozen=True)
class FedAPM(Consensus):
    """min Σ α_i f_i(v_i, u_i) s.t. u_i = u, by L_i = α_i f_i + ⟨π_i, u_i − u⟩ + ρ/2·‖u_i − u‖²."""

    name = "fedapm"
    label = "FedAPM"
    personal_field = "v"
    personal = "v_i; also kept: the copy u_i, the dual π_i and ξ_i"
    sends = "ρ(u_i − ū), the change of π_i, shared part only"
    evaluates = "ū with v_i (or u_i with v_i)"
    suits = "clients differ, or only some take part in a round: shared and personal parts, without drift"
    search_space: ClassVar[SearchSpace] = (
        log_range("algorithm.kappa", 0.03, 1.0),
        choices("algorithm.sigma", "auto", 0.0, 0.003, 0.03, 0.3),
        choices("algorithm.phases", "auto", "joint"),
        replace(EPOCHS_V, condition=("algorithm.phases", "auto")),
        replace(LR_V, condition=("algorithm.phases", "auto")),
        choices("algorithm.evaluate", "auto", "local"),
    )
    search_grid: ClassVar[SearchSpace] = (choices("algorithm.kappa", 0.05, 0.1, 0.2, 0.4, 0.8),)
    unit_powers = {"algorithm.lr_v": 1, "algorithm.rho": -1, "algorithm.sigma": -1, "algorithm.xi": -2}

    sigma: NonNegativeFloat | Literal["auto"] = "auto"
    """σ: weight of the proximal term on v_i. `auto`: 0.01/(η·K̄), with the step size and the number of steps of the
    personal phase."""
    v_at: Literal["local", "shared"] = "shared"
    """Where v_i is solved: at the client's copy u_i, as the paper writes, or at the broadcast ū."""
    u_start: Literal["local", "shared"] = "shared"
    """Where the search for u_i starts: at the client's copy, or at the broadcast ū."""
    evaluate: Literal["auto", "local", "shared"] = "auto"
    """Which shared part a client's model uses: its copy u_i or ū. In the closing phase the copy is solved once more,
    near ū but for this client alone. `auto`: what was better on validation data where the split is searched, else ū."""
    phases: Literal["auto", "alternating", "joint"] = "auto"
    """Whether v_i and u_i are solved one after the other, as the paper writes, or both at once in half the passes over
    the data, where `v_at` and `epochs_v` do not matter and `lr_v` is for the closing phase. `auto`: what was better on
    validation data where the split is searched, else one after the other."""
    relax: Annotated[float, Gt(0), Lt(2)] = 1.0
    """β: over-relaxation. The dual and the message use ū + β(u_i − ū) for u_i; above 1 the server moves more."""
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

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """v_i⁰, u_i⁰ = u⁰, π_i⁰ = 0, ξ_i⁰, and z_i⁰ = u⁰ where the server averages all z_i."""
        return State(v=v0, u=u0, pi=u0.zeros(), xi=self.xi or 0.0, **self.z_init(u0))

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Line 8 of Algorithm 1."""
        u_bar, xi, rho, sigma = broadcast.u, self.mu * state.xi, self.penalty(broadcast, task), self.proximity(task)
        stop_u: StopRule | None = UntilStationary(xi, self.max_epochs) if self.xi else None
        stop_v = stop_u if self.epochs_v is None else Epochs(self.epochs_v)
        u_for_v = state.u if self.v_at == "local" else u_bar
        u0 = state.u if self.u_start == "local" else u_bar

        if self.phases == "joint":
            pull = dict.fromkeys(u0, rho) | dict.fromkeys(state.v, sigma)
            pi, prox = state.pi | state.v.zeros(), Prox(pull, u_bar | state.v)
            w = task.minimize(u0 | state.v, weight=task.alpha, linear=pi, prox=prox, stop=stop_u)
            u, v = w.only(u0), w.only(state.v)
        else:
            v = task.minimize(
                state.v, fixed=u_for_v, weight=task.alpha, prox=Prox(sigma, state.v), stop=stop_v, lr=self.lr_v
            )
            u = task.minimize(u0, fixed=v, weight=task.alpha, linear=state.pi, prox=Prox(rho, u_bar), stop=stop_u)
        u_hat = u if self.relax == 1 else u_bar + self.relax * (u - u_bar)
        gap = u_hat - u_bar
        pi = state.pi + rho * gap
        z = self.z(u_hat, pi, rho)
        return ClientUpdate(self.upload(state, rho, gap, pi, z, task), state.replace(v=v, u=u, pi=pi, xi=xi, **z), u)

    def proximity(self, task: Task) -> float:
        """σ in this round."""
        if not isinstance(self.sigma, str):
            return self.sigma
        own = (None, None) if self.phases == "joint" else (self.lr_v, self.epochs_v)
        return KAPPA_V / task.path_length(*own)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """v_i at ū; where u_i is evaluated, u_i ← argmin α_i f_i(v_i, u) + ρ/2·‖u − ū‖²: the last step has no dual."""
        u_bar, stop = broadcast.u, Epochs(epochs)
        prox = Prox(self.proximity(task), state.v)
        v = task.minimize(state.v, fixed=u_bar, weight=task.alpha, prox=prox, stop=stop, lr=self.lr_v)
        if self.evaluate != "local":
            return state.replace(v=v, u=u_bar)
        near = Prox(self.penalty(broadcast, task), u_bar)
        return state.replace(v=v, u=task.minimize(u_bar, fixed=v, weight=task.alpha, prox=near, stop=stop))

    def alternatives(self, personal: bool = True) -> dict[str, Algorithm]:
        """FedAlt, which is ρ = σ = 0; the correction; both parts at once; and models with the clients' own copies."""
        shared = {"evaluate": "shared"} if self.evaluate == "auto" else {}
        apart = {"phases": "alternating"} if self.phases == "auto" else {}
        tried: dict[str, dict[str, Any]] = {"with correction": shared | apart}
        if self.rho == "auto" and self.sigma == "auto":
            tried = {"no correction": shared | apart | {"rho": 0.0, "sigma": 0.0}} | tried
        if apart and personal and self.lr_v is None and self.epochs_v is None and self.v_at == "shared":
            tried["with correction, both parts at once"] = shared | {"phases": "joint"}
        if shared:
            tried["with correction, own copies at the end"] = apart | {"evaluate": "local"}
        return {name: replace(self, **settings) for name, settings in tried.items()}

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """(u_i or ū, v_i)."""
        del view
        return (state.u if self.evaluate == "local" else broadcast.u), state.v

    def stationarity(self, broadcast: State, state: State, task: Task) -> Stationarity:
        """α_i∇_u f_i + π_i + ρ(u_i − u) = 0, ∇_v f_i = 0, u_i = u, Σ π_i = 0."""
        gap, rho = state.u - broadcast.u, self.penalty(broadcast, task)
        gradient = task.gradient(state.u | state.v)
        g_u, g_v = gradient.only(state.u), gradient.only(state.v)
        return Stationarity(
            {"u": task.alpha * g_u + state.pi + rho * gap, "v": g_v, "consensus": gap}, {"dual": state.pi}
        )

    def lagrangian(self, broadcast: State, state: State, task: Task) -> Lagrangian | None:
        """L_i, and the 29/(ρ(1 − μ))·ξ_i that make L̃ of it; without a penalty there is no Lagrangian."""
        gap, rho = state.u - broadcast.u, self.penalty(broadcast, task)
        if not rho:
            return None
        value = task.alpha * task.value(state.u, state.v) + state.pi @ gap + 0.5 * rho * gap.sq()
        return Lagrangian(value, 29 * state.xi / (rho * (1 - self.mu)), gap.norm(), rho)
