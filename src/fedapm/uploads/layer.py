"""Layer: a method around another one, which does everything as that one does unless it says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import nn

from fedapm.core.algorithm import Aggregate, Algorithm, ClientUpdate, Lagrangian, State, Stationarity, Upload
from fedapm.core.split import Split
from fedapm.core.task import Task
from fedapm.core.vec import Vec

DECLARED = ("name", "label", "scope", "views", "preset", "cumulative", "personal_field", "takes_split")
"""What a method says of itself that is no function."""
L = TypeVar("L", bound="Layer")


@dataclass(frozen=True)
class Layer(Algorithm):
    """A method around another one; to engines it is one more method."""

    method: Algorithm

    def __post_init__(self) -> None:
        for name in DECLARED:
            object.__setattr__(self, name, getattr(self.method, name))

    @property
    def plain(self) -> Algorithm:
        """The innermost method."""
        return self.method.plain

    @property
    def told(self) -> Mapping[str, str]:
        """The method's own."""
        return self.method.told

    def averaged(self, u0: Vec) -> Mapping[str, Vec]:
        """The method's own."""
        return self.method.averaged(u0)

    def adapt(self, network: nn.Module, split: Split) -> tuple[nn.Module, Split]:
        """The method's own."""
        return self.method.adapt(network, split)

    def server_init(self, u0: Vec) -> State:
        """The method's own."""
        return self.method.server_init(u0)

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """The method's own."""
        return self.method.client_init(u0, v0)

    def broadcast(self, server: State) -> State:
        """The method's own."""
        return self.method.broadcast(server)

    def change_nbytes(self, broadcast: State) -> int:
        """The method's own."""
        return self.method.change_nbytes(broadcast)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The method's own."""
        return self.method.client_update(broadcast, state, task)

    def takes_part(self, broadcast: State, state: State, task: Task) -> bool:
        """The method's own."""
        return self.method.takes_part(broadcast, state, task)

    @property
    def abstains(self) -> str | None:
        """The method's own."""
        return self.method.abstains

    def instead(self, update: ClientUpdate, broadcast: State, state: State, task: Task) -> ClientUpdate | None:
        """The method's own."""
        return self.method.instead(update, broadcast, state, task)

    def aggregate(self, uploads: Iterable[Upload]) -> Aggregate:
        """The method's own."""
        return self.method.aggregate(uploads)

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The method's own."""
        return self.method.server_update(state, total, m)

    def without_round(self, state: State, m: int) -> State:
        """The method's own."""
        return self.method.without_round(state, m)

    @property
    def screens(self) -> bool:
        """The method's own."""
        return self.method.screens

    def counted(self, server: State, uploads: Sequence[Upload]) -> list[Upload | None]:
        """The method's own."""
        return self.method.counted(server, uploads)

    def corrected(self, state: State, correction: Mapping[str, Vec]) -> State:
        """The method's own."""
        return self.method.corrected(state, correction)

    def stop_before(self, round: int, m: int) -> str | None:
        """The method's own."""
        return self.method.stop_before(round, m)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The method's own."""
        return self.method.client_model(broadcast, state, view)

    def message_unit(self, broadcast: State, task: Task) -> float:
        """The method's own."""
        return self.method.message_unit(broadcast, task)

    def certain(self, broadcast: State, task: Task) -> Mapping[str, Mapping[str, float]]:
        """The method's own."""
        return self.method.certain(broadcast, task)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """The method's own."""
        return self.method.personalize(broadcast, state, task, epochs)

    def alternatives(self, personal: bool = True) -> dict[str, Algorithm]:
        """The method's own, each with the same around it."""
        return {name: replace(self, method=other) for name, other in self.method.alternatives(personal).items()}

    def stationarity(self, broadcast: State, state: State, task: Task) -> Stationarity | None:
        """The method's own."""
        return self.method.stationarity(broadcast, state, task)

    def lagrangian(self, broadcast: State, state: State, task: Task) -> Lagrangian | None:
        """The method's own."""
        return self.method.lagrangian(broadcast, state, task)


def layer_of(method: Algorithm, kind: type[L]) -> L | None:
    """The layer of a kind that a method has around it, if it has one."""
    while isinstance(method, Layer):
        if isinstance(method, kind):
            return method
        method = method.method
    return None
