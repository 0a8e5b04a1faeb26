"""Algorithm: what a client does and what the server does, as pure functions of their states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from fedapm.core.ranges import check_ranges
from fedapm.core.search_space import SearchSpace, Units
from fedapm.core.split import Preset, Scope, Split, SplitRule
from fedapm.core.task import Task
from fedapm.core.vec import Vec, total

Value = Vec | float


class State(Mapping[str, Value]):
    """What a side keeps between rounds: named vectors and numbers, never changed in place."""

    __slots__ = ("_fields",)

    def __init__(self, **fields: Value) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Value:
        return self._fields[name]

    def __getattr__(self, name: str) -> Any:
        if name == "_fields":
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(f"the state has no {name!r}; it has {', '.join(self._fields)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def items(self) -> ItemsView[str, Value]:
        """Names and fields."""
        return self._fields.items()

    def values(self) -> ValuesView[Value]:
        """The fields, in order."""
        return self._fields.values()

    def __repr__(self) -> str:
        return "State(" + ", ".join(f"{n}={v!r}" for n, v in self._fields.items()) + ")"

    def replace(self, **fields: Value) -> State:
        """The same state with some fields changed."""
        return State(**(self._fields | fields))

    @property
    def vectors(self) -> dict[str, Vec]:
        """The fields that are vectors."""
        return {n: v for n, v in self._fields.items() if isinstance(v, Vec)}

    @property
    def nbytes(self) -> int:
        """What sending this state costs, in bytes; a number is eight."""
        return sum(v.nbytes if isinstance(v, Vec) else 8 for v in self._fields.values())

    def is_finite(self) -> bool:
        """Whether every number in it is."""
        return all(v.is_finite() if isinstance(v, Vec) else abs(v) < float("inf") for v in self.values())


@dataclass(frozen=True)
class Upload:
    """All that leaves a client: vectors the server only ever needs the sum of, and the weight they carry."""

    sums: Mapping[str, Vec] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def nbytes(self) -> int:
        """What sending it costs, in bytes."""
        return sum(v.nbytes for v in self.sums.values()) + (8 if self.sums else 0)

    def is_finite(self) -> bool:
        """Whether every number in it is."""
        return abs(self.weight) < float("inf") and all(v.is_finite() for v in self.sums.values())


@dataclass(frozen=True)
class Aggregate:
    """The uploads of one round, added up."""

    sums: Mapping[str, Vec]
    weight: float
    count: int

    def __getitem__(self, name: str) -> Vec:
        return self.sums[name]

    @classmethod
    def of(cls, uploads: Iterable[Upload]) -> Aggregate:
        """Add up uploads in the order given."""
        items = list(uploads)
        names = items[0].sums if items else ()
        sums = {n: total(item.sums[n] for item in items) for n in names}
        return cls(sums, sum(item.weight for item in items), len(items))


@dataclass(frozen=True)
class ClientUpdate:
    """What a client's round results in."""

    upload: Upload
    """All that is sent."""
    state: State
    """All that is kept."""
    u: Vec
    """The client's own copy of the shared part after its work. It stays on the client: drift is measured from it."""

    def is_finite(self) -> bool:
        """Whether the client's work came out as numbers."""
        return self.upload.is_finite() and self.state.is_finite() and self.u.is_finite()


@dataclass(frozen=True)
class Algorithm(ABC):
    """A federated method: a frozen set of hyperparameters and five pure functions.

    ``scope`` says how it sees the model: "split" as the experiment splits it, "whole" as one shared model,
    "none" as wholly personal. ``views`` names the models it is judged by. ``preset`` is set by methods that are
    defined by which stage is personal. ``cumulative`` names the sums that the server keeps adding up over rounds
    because they are changes of what clients keep (None: not known): what such a client has sent must be taken back
    before it can begin anew. ``personal``, ``sends`` and ``evaluates`` say in words what a client keeps to itself, what
    it sends and which model is judged; the table of methods in the documentation is made from them.

    For tuning, ``search_space`` has the ranges of its own hyperparameters, per client, and ``search_grid`` a few values
    of the most important ones, in ``grid_units``. ``unit_powers`` names the hyperparameters that depend on the units:
    in the paper's units it is the per-client one times this power of the number of clients m, for the reasons in
    docs/explanation/fedapm.md. A method inherits all four from the one it extends.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    scope: ClassVar[Scope] = "split"
    views: ClassVar[tuple[str, ...]] = ("model",)
    preset: ClassVar[Preset | None] = None
    cumulative: ClassVar[tuple[str, ...] | None] = None
    personal: ClassVar[str]
    sends: ClassVar[str]
    evaluates: ClassVar[str]
    search_space: ClassVar[SearchSpace] = ()
    search_grid: ClassVar[SearchSpace] = ()
    grid_units: ClassVar[Units] = "client"
    unit_powers: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        check_ranges(self, "algorithm")

    def adapt(self, network: nn.Module, split: Split) -> tuple[nn.Module, Split]:
        """The network and its blocks as the method needs them; most take the network as it is."""
        if self.preset is not None:
            split = SplitRule(self.preset, frozen=split.frozen).apply(network)
        return network, split.scoped(self.scope)

    @abstractmethod
    def server_init(self, u0: Vec) -> State:
        """What the server keeps; its vector ``u`` is the shared model, where there is one."""

    @abstractmethod
    def client_init(self, u0: Vec, v0: Vec) -> State:
        """What a client keeps between rounds."""

    def broadcast(self, server: State) -> State:
        """What every selected client receives."""
        return server

    @abstractmethod
    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """A selected client's local work."""

    @abstractmethod
    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The server's new state from the sum of all uploads; m is the number of clients, selected or not."""

    @abstractmethod
    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The shared and personal parts (u, v) that are evaluated and exported for a client."""

    def stationarity(self, broadcast: State, state: State, task: Task) -> Stationarity | None:
        """How far a client is from the method's stationary point, where the method defines one."""
        del broadcast, state, task
        return None


@dataclass(frozen=True)
class Stationarity:
    """One client's part in the conditions of a stationary point: vectors that are zero there."""

    each: Mapping[str, Vec]
    """Conditions every client must meet by itself."""
    summed: Mapping[str, Vec] = field(default_factory=dict)
    """Conditions on the sum over all clients."""
