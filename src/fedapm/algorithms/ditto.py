"""Ditto: a global model by FedAvg, and personal models with a proximal term towards it.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeFloat, NonNegativeInt

from fedapm.algorithms.averaging import Averaging
from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.search_space import EPOCHS_V, choices, log_range
from fedapm.core.task import Epochs, Prox, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class Ditto(Averaging):
    """w by FedAvg; v_i ← argmin f_i(v_i) + λ/2·‖v_i − w‖²."""

    name = "ditto"
    label = "Ditto"
    scope = "whole"
    views = ("P", "G")
    personal_field = "v"
    personal = "a whole model v_i"
    sends = "the change of w_i, whole model"
    evaluates = "P: v_i; G: the global w"
    suits = "as for pFedMe, and the common model should be FedAvg's"
    search_space = (log_range("algorithm.lam", 0.001, 3.0), EPOCHS_V)
    search_grid = (choices("algorithm.lam", 0.01, 0.1, 0.5, 1.0),)
    unit_powers = {"algorithm.lam": -1}

    lam: NonNegativeFloat = 0.1
    """λ: how closely v_i is tied to w."""
    epochs_v: NonNegativeInt | None = None
    """Epochs on the personal model; the solver's if not given."""

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its personal model."""
        del v0
        return State(v=u0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """w_i from the broadcast w, and v_i with a proximal term towards the same w."""
        stop_v = None if self.epochs_v is None else Epochs(self.epochs_v)
        u = task.minimize(broadcast.u)
        v = task.minimize(state.v, prox=Prox(self.lam, broadcast.u), stop=stop_v)
        return ClientUpdate(self.upload(u, broadcast.u, task), state.replace(v=v), u)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """v_i ← argmin f_i(v_i) + λ/2·‖v_i − w‖²."""
        return state.replace(v=task.minimize(state.v, prox=Prox(self.lam, broadcast.u), stop=Epochs(epochs)))

    def client_model(self, broadcast: State, state: State, view: str = "P") -> tuple[Vec, Vec]:
        """P: the client's v_i. G: the server's w."""
        return (state.v if view == "P" else broadcast.u), Vec()
