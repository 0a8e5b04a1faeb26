"""FedAlt: alternating training, the personal part first and then the shared part (Gauss-Seidel).

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao: Federated Learning with Partial Model Personalization. ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeInt, PositiveFloat

from fedapm.algorithms.averaging import Averaging
from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.search_space import EPOCHS_V, LR_V
from fedapm.core.task import Epochs, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class FedAlt(Averaging):
    """v_i ← SGD on f_i(·, ū); u_i ← SGD on f_i(v_i, ·) from ū; u ← Σ α_i u_i / Σ α_i."""

    name = "fedalt"
    label = "FedAlt"
    personal_field = "v"
    personal = "v_i"
    sends = "the change of the shared part"
    evaluates = "ū with v_i"
    suits = "part of the network is personal, and a plain average of the rest will do"
    search_space = (EPOCHS_V, LR_V)
    unit_powers = {"algorithm.lr_v": 1}

    lr_v: PositiveFloat | None = None
    """Step size of the personal phase; the solver's if not given."""
    epochs_v: NonNegativeInt | None = None
    """Epochs of the personal phase; the solver's if not given."""

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its personal part."""
        del u0
        return State(v=v0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The personal part at the broadcast u, then the shared part at the new v_i."""
        stop_v = None if self.epochs_v is None else Epochs(self.epochs_v)
        v = task.minimize(state.v, fixed=broadcast.u, lr=self.lr_v, stop=stop_v)
        u = task.minimize(broadcast.u, fixed=v)
        return ClientUpdate(self.upload(u, broadcast.u, task), state.replace(v=v), u)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """v_i ← SGD on f_i(·, ū)."""
        return state.replace(v=task.minimize(state.v, fixed=broadcast.u, lr=self.lr_v, stop=Epochs(epochs)))

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The shared model with the client's own part."""
        del view
        return broadcast.u, state.v
