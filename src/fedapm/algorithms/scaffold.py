"""SCAFFOLD: FedAvg whose local steps are corrected by control variates.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedapm.algorithms.averaging import Averaging
from fedapm.core.algorithm import Reply, State, Total, Upload
from fedapm.core.task import Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class Scaffold(Averaging):
    """y ← y − η_l(∇f_i(y) − c_i + c); c_i ← c_i − c + (x − y)/(K·η_l); x += η_g·mean Δy; c += (1/m)·Σ Δc_i."""

    name = "scaffold"
    label = "SCAFFOLD"
    scope = "whole"
    remembers = ("dc",)
    personal = "nothing; kept: the control variate c_i"
    sends = "the changes of the whole model and of c_i"
    evaluates = "the global model"

    eta_g: float = 1.0
    """η_g: server step size."""

    def __post_init__(self) -> None:
        if self.eta_g <= 0:
            raise ValueError(f"algorithm.eta_g = {self.eta_g} must be positive.")

    def server_init(self, u0: Vec) -> State:
        """The model x and its control variate c = 0."""
        return State(u=u0, c=u0.zeros())

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """c_i = 0."""
        del v0
        return State(c=u0.zeros())

    def client(self, down: State, s: State, task: Task) -> Reply:
        """K corrected steps, then the new control variate (option II of the paper)."""
        y = task.minimise(down.u, linear=down.c - s.c)
        steps = task.log[-1].steps * task.step_size()
        c = s.c - down.c + (down.u - y) / steps if steps else s.c
        change = self.upload(y, down.u, task)
        return Reply(Upload({**change.sums, "dc": c - s.c}, change.weight), s.replace(c=c), y)

    def server(self, state: State, total: Total, m: int) -> State:
        """The model by the mean change of those selected, c by the changes over all clients."""
        x = state.u + self.eta_g * (total["du"] / total.weight)
        return state.replace(u=x, c=state.c + total["dc"] / m)

    def model(self, down: State, s: State, view: str = "model") -> tuple[Vec, Vec]:
        """The same model for every client."""
        del s, view
        return down.u, Vec()
