"""The server step of McMahan et al. (AISTATS 2017), which most methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedapm.core.algorithm import Aggregate, Algorithm, State, Upload
from fedapm.core.task import Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class Averaging(Algorithm):
    """u ← Σ α_i u_i / Σ α_i over the selected clients, sent and added up as weighted changes."""

    cumulative: ClassVar[tuple[str, ...] | None] = ()

    def server_init(self, u0: Vec) -> State:
        """The shared model."""
        return State(u=u0)

    def averaged(self, u0: Vec) -> dict[str, Vec]:
        """α_i·(u_i − ū)."""
        return {"du": u0.zeros()}

    def upload(self, u: Vec, u_bar: Vec, task: Task) -> Upload:
        """α_i·(u_i − ū)."""
        return Upload({"du": task.alpha * (u - u_bar)}, task.alpha, task.alpha)

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The weighted mean of the clients that took part."""
        del m
        return state.replace(u=state.u + total["du"] / total.weight)
