"""FedSim: simultaneous training of both parts (Jacobi).

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao: Federated Learning with Partial Model Personalization. ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedapm.algorithms.averaging import Averaging
from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.task import Epochs, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class FedSim(Averaging):
    """(v_i, u_i) ← SGD on f_i from (v_i, ū), both in each step; u ← Σ α_i u_i / Σ α_i."""

    name = "fedsim"
    label = "FedSim"
    personal_field = "v"
    personal = "v_i"
    sends = "the change of the shared part"
    evaluates = "ū with v_i"
    suits = "as for FedAlt, with half the passes over the data"

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its personal part."""
        del u0
        return State(v=v0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Both parts from where they are, simultaneously."""
        w = task.minimize(broadcast.u | state.v)
        u, v = w.only(broadcast.u), w.only(state.v)
        return ClientUpdate(self.upload(u, broadcast.u, task), state.replace(v=v), u)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """v_i ← SGD on f_i(·, ū)."""
        return state.replace(v=task.minimize(state.v, fixed=broadcast.u, stop=Epochs(epochs)))

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The shared model with the client's own part."""
        del view
        return broadcast.u, state.v
