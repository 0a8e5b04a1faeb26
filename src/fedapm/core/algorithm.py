"""Algorithm: what a client does and what the server does, as pure functions of their states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from fedapm.core.ranges import check_ranges
from fedapm.core.search_space import SearchSpace, Units
from fedapm.core.split import Preset, Scope, Split, SplitRule
from fedapm.core.task import Task
from fedapm.core.vec import Vec, total
from fedapm.errors import FedapmError

Value = Vec | float
NUMBERS = "numbers"
"""The sum of an upload that holds single numbers; all others are vectors of the size of a model."""


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
    def numbers(self) -> dict[str, float]:
        """The fields that are numbers."""
        return {n: v for n, v in self._fields.items() if not isinstance(v, Vec)}

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
    unit: float = 1.0
    """What the vectors were multiplied by: divided by it they are changes of a model, which bounds are meant for."""
    wire: Vec | None = None
    """What is really sent in place of the sums, where they are coded; a receiver makes the same sums of it."""

    @property
    def nbytes(self) -> int:
        """What sending it costs, in bytes."""
        if self.wire is not None:
            return self.wire.nbytes + 8
        return sum(v.nbytes for v in self.sums.values()) + (8 if self.sums else 0)

    def is_finite(self) -> bool:
        """Whether every number in it is."""
        return abs(self.weight) < float("inf") and all(v.is_finite() for v in self.sums.values())


@dataclass(frozen=True)
class Aggregate:
    """The uploads of one round, added up."""

    sums: Mapping[str, Vec]
    """Also with what is taken back of clients that begin anew."""
    weight: float
    count: float
    """How many uploads there are; where that is a secret, how many were expected."""
    withdrawn: Mapping[str, Vec] = field(default_factory=dict)
    """The part of the sums that takes back what clients that begin anew had added in earlier rounds."""
    unit: float = 1.0
    """The largest unit of the uploads; see :class:`Upload`."""
    norms: tuple[float, ...] = ()
    """The norm of each upload's vector, where single uploads are looked at."""

    def __getitem__(self, name: str) -> Vec:
        return self.sums[name]

    def mean(self, name: str) -> Vec:
        """The mean over the round's uploads."""
        own = self.sums[name] - self.withdrawn[name] if name in self.withdrawn else self.sums[name]
        return own / self.count

    @classmethod
    def of(cls, uploads: Iterable[Upload]) -> Aggregate:
        """Add up uploads in the order given."""
        items = list(uploads)
        names = items[0].sums if items else ()
        sums = {n: total(item.sums[n] for item in items) for n in names}
        unit = max((abs(item.unit) for item in items), default=1.0)
        return cls(sums, sum(item.weight for item in items), len(items), unit=unit)


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
    """A federated method: a frozen dataclass of hyperparameters, with pure functions of states.

    A method inherits the class attributes of the one it extends.
    """

    name: ClassVar[str]
    """What it is called on the command line and in settings."""
    label: ClassVar[str]
    """What it is called in reports."""
    scope: ClassVar[Scope] = "split"
    """How it sees the model: as the experiment splits it ("split"), as one shared model ("whole") or as wholly
    personal ("none")."""
    views: ClassVar[tuple[str, ...]] = ("model",)
    """The names of the models of a client that are evaluated."""
    preset: ClassVar[Preset | None] = None
    """The stage that is personal, in methods that are defined by it."""
    cumulative: ClassVar[tuple[str, ...] | None] = None
    """The sums that the server adds up over rounds because they are changes of what clients keep; None: not known.
    What a client has added to them must be taken back before it can start again."""
    personal_field: ClassVar[str | None] = None
    """The field of a client's state that :meth:`personalize` solves; None in methods without a personal part."""
    personal: ClassVar[str]
    """What a client keeps to itself, in words; the table of methods in the documentation is made from these three."""
    sends: ClassVar[str]
    """What a client sends, in words."""
    evaluates: ClassVar[str]
    """Which model is evaluated, in words."""
    suits: ClassVar[str] = ""
    """When to use it, in one short phrase; ``fedapm list methods`` shows it."""
    search_space: ClassVar[SearchSpace] = ()
    """For tuning: the ranges of its own hyperparameters, in per-client units."""
    search_grid: ClassVar[SearchSpace] = ()
    """For tuning: a few values of the most important hyperparameters, in ``grid_units``."""
    grid_units: ClassVar[Units] = "client"
    unit_powers: ClassVar[Mapping[str, int]] = {}
    """The hyperparameters that depend on the units: in the paper's units they are the per-client ones times this power
    of the number of clients m. The explanation of FedAPM says why."""

    def __post_init__(self) -> None:
        check_ranges(self, "algorithm")

    @property
    def plain(self) -> Algorithm:
        """The method itself, without what may be done to its messages on their way (see ``fedapm.uploads``)."""
        return self

    @property
    def told(self) -> Mapping[str, str]:
        """The sums that are the change of a field of the client's state, with the name of that field.

        The server adds these changes up, so the field must be what the server was told and nothing else: where less is
        sent than the method meant to, the field moves by what was sent.
        """
        return {}

    def averaged(self, u0: Vec) -> Mapping[str, Vec]:
        """The sums that the server averages in each round, as zero vectors of their shape.

        Where less is sent than the method meant to, the client keeps the rest and adds it to its next upload.

        Args:
            u0: The shared parameters at the start.
        """
        del u0
        return {}

    @classmethod
    def takes_split(cls) -> bool:
        """Whether it trains the split that it is given, and not one of its own."""
        return cls.scope == "split" and cls.preset is None and cls.adapt is Algorithm.adapt

    def adapt(self, network: nn.Module, split: Split) -> tuple[nn.Module, Split]:
        """The network and its blocks as the method needs them; most take the network as it is.

        Args:
            network: The experiment's network; it may be changed.
            split: Its parameters as the experiment splits them.

        Returns:
            The network to train, and its parameters as the method splits them.
        """
        if self.preset is not None:
            split = SplitRule(self.preset, frozen=split.frozen).apply(network)
        return network, split.scoped(self.scope)

    @abstractmethod
    def server_init(self, u0: Vec) -> State:
        """What the server keeps; its vector ``u`` is the shared model, where there is one.

        Args:
            u0: The shared parameters at the start.
        """

    @abstractmethod
    def client_init(self, u0: Vec, v0: Vec) -> State:
        """What a client keeps between rounds.

        Args:
            u0: The shared parameters at the start.
            v0: The client's personal parameters at the start.
        """

    def broadcast(self, server: State) -> State:
        """What every selected client receives; the server's whole state unless a method says otherwise."""
        return server

    def change_nbytes(self, broadcast: State) -> int:
        """What it costs to send a broadcast to a client that has the one before, in bytes.

        Args:
            broadcast: What is sent, whole.
        """
        return broadcast.nbytes

    @abstractmethod
    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """A selected client's local work.

        Args:
            broadcast: What the server sent.
            state: What the client kept from its last round.
            task: Its loss f_i and the solver for it.

        Returns:
            What is sent, what is kept, and the client's copy of the shared parameters.
        """

    def takes_part(self, broadcast: State, state: State, task: Task) -> bool:
        """Whether a client takes part in a round that it is selected for.

        Args:
            broadcast: What the server would send.
            state: What the client keeps.
            task: Its problem in that round.
        """
        del broadcast, state, task
        return True

    @property
    def abstains(self) -> str | None:
        """Why a run ends in which no client takes part any more, in words; None where all of them always do."""
        return None

    def instead(self, update: ClientUpdate, broadcast: State, state: State, task: Task) -> ClientUpdate | None:
        """What a client's round results in where its work did not come out as finite numbers.

        Args:
            update: What came out.
            broadcast: What the server sent.
            state: What the client kept from its last round.
            task: Its problem.

        Returns:
            None where the client is left out, as in most methods.
        """
        del update, broadcast, state, task
        return None

    def aggregate(self, uploads: Iterable[Upload]) -> Aggregate:
        """A round's uploads, put together; methods add them up.

        Args:
            uploads: What the round's clients sent, in their order.
        """
        return Aggregate.of(uploads)

    @abstractmethod
    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The server's new state.

        Args:
            state: Its state before the round.
            total: The uploads of the round, added up.
            m: The number of clients, selected or not.
        """

    def without_round(self, state: State, m: int) -> State:
        """The server's state after a round of which nothing can be used; as before it in most methods.

        Args:
            state: Its state before the round.
            m: The number of clients, selected or not.
        """
        del m
        return state

    @property
    def screens(self) -> bool:
        """Whether the server looks at single uploads before it adds them up; see :meth:`counted`."""
        return False

    def counted(self, server: State, uploads: Sequence[Upload]) -> list[Upload | None]:
        """What the server counts of each upload of a round; None for one that counts as never sent.

        Args:
            server: The server's state before the round.
            uploads: What arrived, in the order of clients.
        """
        del server
        return list(uploads)

    def corrected(self, state: State, correction: Mapping[str, Vec]) -> State:
        """A client's state when the server counted something else than the client had sent.

        Args:
            state: What the client kept.
            correction: What was counted minus what was sent, for sums that are changes of a field (``told``).
        """
        fields: dict[str, Any] = {self.told[name]: state[self.told[name]] + c for name, c in correction.items()}  # type: ignore[operator]  # a vector
        return state.replace(**fields)

    def stop_before(self, round: int, m: int) -> str | None:
        """Why a round must not begin, in words; None where it may.

        Args:
            round: The round, counted from 1.
            m: The number of clients.
        """
        del round, m
        return None

    @abstractmethod
    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The shared and personal parameters (u, v) that are evaluated and exported for a client.

        Args:
            broadcast: What the server would send now.
            state: What the client keeps.
            view: Which of the method's ``views``.
        """

    def message_unit(self, broadcast: State, task: Task) -> float:
        """What a round's messages are changes of the model times: the ``unit`` of its uploads.

        Args:
            broadcast: What the server sent.
            task: Any client's problem in this round.
        """
        del broadcast, task
        return 1.0

    def certain(self, broadcast: State, task: Task) -> Mapping[str, Mapping[str, float]]:
        """What an upload holds whatever the client's data is, so that a server can refuse one that is forged.

        Args:
            broadcast: What the server sent.
            task: Any client's problem in this round.

        Returns:
            For a sum of an upload the numbers in it, by name; nothing in most methods.
        """
        del broadcast, task
        return {}

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """Continue a client's personal part alone, with what is shared fixed; nothing is sent.

        A method that has it names the field it changes in ``personal_field``.

        Args:
            broadcast: What the server would send now.
            state: What the client keeps.
            task: Its loss f_i and the solver for it.
            epochs: Passes over its data.

        Returns:
            A state for :meth:`client_model` with the same ``broadcast``. No round starts from it.
        """
        del broadcast, state, task, epochs
        raise FedapmError(f"{self.label} has no personal part.")

    def alternatives(self, personal: bool = True) -> dict[str, Algorithm]:
        """Ways to set what is left to the method itself, for a search on validation data to choose from.

        Args:
            personal: Whether any parameter is personal; where none is, some ways are the same.

        Returns:
            The method with other hyperparameters, by what they mean; the most cautious first, which the others have to
            beat. One or none where everything is decided.
        """
        del personal
        return {}

    def stationarity(self, broadcast: State, state: State, task: Task) -> Stationarity | None:
        """How far a client is from the method's stationary point, where the method defines one."""
        del broadcast, state, task
        return None

    def lagrangian(self, broadcast: State, state: State, task: Task) -> Lagrangian | None:
        """A client's part in the method's augmented Lagrangian, where the method has one."""
        del broadcast, state, task
        return None


@dataclass(frozen=True)
class Stationarity:
    """One client's part in the conditions of a stationary point: vectors that are zero there."""

    each: Mapping[str, Vec]
    """Conditions every client must meet by itself."""
    summed: Mapping[str, Vec] = field(default_factory=dict)
    """Conditions on the sum over all clients."""


@dataclass(frozen=True)
class Lagrangian:
    """One client's part in an augmented Lagrangian, and in the Lyapunov function made of it."""

    value: float
    """L_i."""
    slack: float
    """What the Lyapunov function adds for a subproblem that is solved approximately."""
    gap: float
    """‖u_i − ū‖."""
    rho: float
    """ρ, the weight of the penalty on the gap."""
