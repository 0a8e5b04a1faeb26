"""Local-only training: every client on its own data, the baseline for all collaboration."""

from __future__ import annotations

from dataclasses import dataclass

from fedapm.core.algorithm import Aggregate, Algorithm, ClientUpdate, State, Upload
from fedapm.core.task import Epochs, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class Local(Algorithm):
    """v_i ← SGD on f_i from v_i; nothing is sent."""

    name = "local"
    label = "Local only"
    scope = "none"
    cumulative = ()
    personal_field = "v"
    personal = "the whole model"
    sends = "nothing"
    evaluates = "the client's own model"
    suits = "clients have plenty of data, or nothing may be sent; what the others must beat"

    def server_init(self, u0: Vec) -> State:
        """The server keeps nothing."""
        del u0
        return State()

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its whole model."""
        del u0
        return State(v=v0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Continue from the client's last model."""
        del broadcast
        v = task.minimize(state.v)
        return ClientUpdate(Upload(), state.replace(v=v), v)

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """Nothing arrives."""
        del total, m
        return state

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """More of the same."""
        del broadcast
        return state.replace(v=task.minimize(state.v, stop=Epochs(epochs)))

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The client's own model."""
        del broadcast, view
        return Vec(), state.v
