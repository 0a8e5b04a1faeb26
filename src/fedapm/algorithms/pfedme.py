"""pFedMe: personal models on the Moreau envelope of each client's loss.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from fedapm.algorithms.averaging import Averaging
from fedapm.core.algorithm import Aggregate, ClientUpdate, State
from fedapm.core.search_space import choices, int_range, log_range
from fedapm.core.task import Epochs, Prox, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class PFedMe(Averaging):
    """θ ≈ argmin f_i(θ) + λ/2·‖θ − w_i‖² by K steps on a batch; w_i −= ηλ(w_i − θ); w ← (1 − β)w + β·mean w_i."""

    name = "pfedme"
    label = "pFedMe"
    scope = "whole"
    views = ("P", "G")
    personal_field = "theta"
    personal = "a whole model θ_i"
    sends = "the change of w_i, whole model"
    evaluates = "P: θ_i; G: the global w"
    suits = "each client wants a whole model of its own, near a common one"
    search_space = (
        log_range("algorithm.lam", 0.3, 30.0),
        int_range("algorithm.k", 1, 8),
        log_range("algorithm.eta", 0.005, 0.5),
    )
    search_grid = (choices("algorithm.lam", 0.5, 2.0, 8.0, 15.0),)
    unit_powers = {"algorithm.lam": -1, "algorithm.eta": 1}

    lam: PositiveFloat = 2.0
    """λ: how closely θ_i is tied to w_i."""
    k: PositiveInt = 5
    """K: inner steps on each batch."""
    eta: PositiveFloat = 0.1
    """η: outer step size on w_i."""
    beta: PositiveFloat = 1.0
    """β: how far the server goes towards the clients' mean."""

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its personal model θ_i."""
        del v0
        return State(theta=u0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """R local rounds, one on each batch of the local epochs."""

        def step(batch: Any, w: Vec, theta: Vec) -> tuple[Vec, Vec]:
            theta = self.near(theta, w, task, batch)
            return w - self.eta * task.lr_factor * self.lam * (w - theta), theta

        w, theta = task.each_batch(step, broadcast.u, broadcast.u)
        return ClientUpdate(self.upload(w, broadcast.u, task), state.replace(theta=theta), w)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """θ_i ≈ argmin f_i(θ) + λ/2·‖θ − w‖² by K steps on each batch, from θ_i."""

        def step(batch: Any, theta: Vec) -> tuple[Vec]:
            return (self.near(theta, broadcast.u, task, batch),)

        (theta,) = task.each_batch(step, state.theta, epochs=epochs)
        return state.replace(theta=theta)

    def near(self, theta: Vec, w: Vec, task: Task, batch: Any) -> Vec:
        """K steps on f_i(θ) + λ/2·‖θ − w‖² on one batch."""
        return task.minimize(theta, prox=Prox(self.lam, w), stop=Epochs(self.k), batch=batch)

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """(1 − β)w + β·mean w_i, as w plus β times the mean change."""
        return state.replace(u=state.u + self.beta * (super().server_update(state, total, m).u - state.u))

    def client_model(self, broadcast: State, state: State, view: str = "P") -> tuple[Vec, Vec]:
        """P: the client's θ_i. G: the server's w."""
        return (state.theta if view == "P" else broadcast.u), Vec()
