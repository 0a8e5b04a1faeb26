"""Local-only training: every client for itself, the bar any collaboration must clear."""

from __future__ import annotations

from dataclasses import dataclass

from fedapm.core.algorithm import Algorithm, Reply, State, Total, Upload
from fedapm.core.task import Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class Local(Algorithm):
    """v_i ← SGD on f_i from v_i; nothing is sent."""

    name = "local"
    label = "Local only"
    scope = "none"
    remembers = ()
    personal = "the whole model"
    sends = "nothing"
    evaluates = "the client's own model"

    def server_init(self, u0: Vec) -> State:
        """There is nothing to keep."""
        del u0
        return State()

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its whole model."""
        del u0
        return State(v=v0)

    def client(self, down: State, s: State, task: Task) -> Reply:
        """Go on training where the last time ended."""
        del down
        v = task.minimise(s.v)
        return Reply(Upload(), s.replace(v=v), v)

    def server(self, state: State, total: Total, m: int) -> State:
        """Nothing arrives."""
        del total, m
        return state

    def model(self, down: State, s: State, view: str = "model") -> tuple[Vec, Vec]:
        """The client's own model."""
        del down, view
        return Vec(), s.v
