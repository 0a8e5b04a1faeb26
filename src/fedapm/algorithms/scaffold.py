"""SCAFFOLD: FedAvg whose local steps are corrected by control variates.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import PositiveFloat

from fedapm.algorithms.averaging import Averaging
from fedapm.core.algorithm import Aggregate, ClientUpdate, State
from fedapm.core.search_space import choices, log_range
from fedapm.core.task import Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class Scaffold(Averaging):
    """y ← y − η_l(∇f_i(y) − c_i + c); c_i ← c_i − c + (x − y)/(K·η_l); x += η_g·mean Δy; c += (1/m)·Σ Δc_i."""

    name = "scaffold"
    label = "SCAFFOLD"
    scope = "whole"
    cumulative = ("dc",)
    personal = "nothing; kept: the control variate c_i"
    sends = "the changes of the whole model and of c_i"
    evaluates = "the global model"
    suits = "one model serves all, clients differ, and twice the traffic does no harm"
    search_space = (log_range("algorithm.eta_g", 0.1, 2.0),)
    search_grid = (choices("algorithm.eta_g", 0.3, 0.6, 1.0, 1.5),)

    eta_g: PositiveFloat = 1.0
    """η_g: server step size."""

    @property
    def told(self) -> dict[str, str]:
        """Δc_i."""
        return {"dc": "c"}

    def server_init(self, u0: Vec) -> State:
        """The model x and its control variate c = 0."""
        return State(u=u0, c=u0.zeros())

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """c_i = 0."""
        del v0
        return State(c=u0.zeros())

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """K corrected steps, then the new control variate (option II of the paper)."""
        y = task.minimize(broadcast.u, linear=broadcast.c - state.c)
        steps = task.log[-1].steps * task.step_size()
        c = state.c - broadcast.c + (broadcast.u - y) / steps if steps else state.c
        change = self.upload(y, broadcast.u, task)
        upload = replace(change, sums={**change.sums, "dc": c - state.c})
        return ClientUpdate(upload, state.replace(c=c), y)

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The model by the mean change of those selected, c by the changes over all clients."""
        x = state.u + self.eta_g * (total["du"] / total.weight)
        return state.replace(u=x, c=state.c + total["dc"] / m)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The same model for every client."""
        del state, view
        return broadcast.u, Vec()
