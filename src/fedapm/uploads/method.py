"""Transmitted: a method whose messages go through a transform.

    m_i = C(z_i⁺ − z̃_i)        what is sent
    z̃_i ← z̃_i + m_i            kept by the client: what the server was told

A field of the client's state that the server holds the mean of (z_i, π_i, c_i) moves by what was sent. Where the server
only averages a round's changes, what was withheld is kept and added to the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedapm.core.algorithm import (
    NUMBERS,
    Algorithm,
    ClientUpdate,
    Lagrangian,
    State,
    Stationarity,
    Upload,
)
from fedapm.core.batched import BatchedVec, NotBatchable
from fedapm.core.task import Task
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.uploads.broadcast import Announced
from fedapm.uploads.centered import Centered
from fedapm.uploads.layer import Layer
from fedapm.uploads.masks.method import Masked
from fedapm.uploads.norm_limit import NormLimited
from fedapm.uploads.robust import Robust
from fedapm.uploads.settings import ROUNDINGS, TABLE, UploadSettings
from fedapm.uploads.transform import Transform

UNSENT = "unsent_"
"""What the fields begin with that hold what a client has not sent yet."""
PURPOSE = "upload"
"""What the random streams are for that rounding draws from."""
PROBE = Vec({"u": torch.zeros(1)})
"""A model of one number, to ask a method which vectors it sends."""


@dataclass(frozen=True)
class Transmitted(Layer):
    """A method whose messages go through a transform."""

    transform: Transform

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """What the method keeps, and of averaged sums what is not sent yet: nothing."""
        unsent = {UNSENT + name: zero for name, zero in self.method.averaged(u0).items()}
        return self.method.client_init(u0, v0).replace(**unsent)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The method's local work, and of its message what the transform lets through."""
        update = self.method.client_update(broadcast, _own(state), task)
        upload, streams = update.upload, task.streams(PURPOSE)
        kept: dict[str, Any] = dict(update.state)
        sums: dict[str, Vec] = {}
        wire: dict[str, Any] = {}
        for name, vector in upload.sums.items():
            field = self.told.get(name)
            if len(streams) > 1 and not isinstance(vector, BatchedVec):
                raise NotBatchable("the method sends one message for several clients")
            if name == NUMBERS:
                sums[name], coded = vector, vector
            elif field is not None:
                sums[name], coded = self.transform.send(vector, upload.unit, streams)
                kept[field] = state[field] + sums[name]  # type: ignore[operator]  # a vector, as the sum is
            elif UNSENT + name in state:
                wanted = vector + state[UNSENT + name]  # type: ignore[operator]
                sums[name], coded = self.transform.send(wanted, upload.unit, streams)
                kept[UNSENT + name] = wanted - sums[name]
            else:
                raise FedapmError(f"{self.label} does not say whether the server adds up or averages its {name!r}.")
            wire |= {f"{name}/{part}": tensor for part, tensor in coded.items()}
        kind = BatchedVec if any(isinstance(v, BatchedVec) for v in sums.values()) else Vec
        sent = Upload(sums, upload.weight, upload.unit, kind(wire) if self.transform.codes else None)
        return ClientUpdate(sent, State(**kept), update.u)

    def encode(self, sums: Mapping[str, Vec], task: Task) -> Vec:
        """What is sent for given sums of one client.

        Args:
            sums: The sums that are to arrive, as far as the transform lets them.
            task: The client's problem.
        """
        (stream,) = task.streams(PURPOSE)
        coded = {name: v if name == NUMBERS else self.transform.encode(v, stream) for name, v in sums.items()}
        return Vec({f"{name}/{part}": tensor for name, parts in coded.items() for part, tensor in parts.items()})

    def decode(self, wire: Vec, like: Mapping[str, Vec]) -> dict[str, Vec]:
        """The sums of an upload that came over the wire.

        Args:
            wire: What was sent.
            like: Sums of the same names, shapes and types.

        Raises:
            FedapmError: If it stands for no sums.
        """
        sums = {}
        for name, vector in like.items():
            start = f"{name}/"
            parts = {part.removeprefix(start): t for part, t in wire.items() if part.startswith(start)}
            sums[name] = Vec(parts) if name == NUMBERS else self.transform.decode(parts, vector)
        return sums

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The method's own."""
        return self.method.client_model(broadcast, _own(state), view)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """The method's own; nothing is sent."""
        unsent = {name: value for name, value in state.items() if name.startswith(UNSENT)}
        return self.method.personalize(broadcast, _own(state), task, epochs).replace(**unsent)

    def stationarity(self, broadcast: State, state: State, task: Task) -> Stationarity | None:
        """The method's own."""
        return self.method.stationarity(broadcast, _own(state), task)

    def lagrangian(self, broadcast: State, state: State, task: Task) -> Lagrangian | None:
        """The method's own."""
        return self.method.lagrangian(broadcast, _own(state), task)


def transmitted(method: Algorithm, settings: UploadSettings, *, uniform: bool = True) -> Algorithm:
    """A method with what the settings do to its messages; the method itself where they do nothing.

    Args:
        method: Any method.
        settings: The table [upload].
        uniform: Whether all clients weigh the same.

    Raises:
        FedapmError: If the method cannot carry it.
    """
    if settings in (UploadSettings(), UploadSettings(aggregate="mean")):
        return method
    if method.scope == "none":
        raise FedapmError(f"{method.label} sends nothing, so there is nothing for [{TABLE}] to do; leave it out.")
    if settings.broadcast is not None:
        method = Announced(method, ROUNDINGS[settings.broadcast])
    if settings.screens:
        _check_screened(method, settings, uniform)
    if settings.aggregate == "centered-clipping" and settings.clip is not None:
        method = Centered(method, settings.clip)
    if (transform := settings.transform) is not None:
        method = _transformed(method, settings, transform)
    if settings.norm_limit is not None:
        method = NormLimited(method, settings.norm_limit)
    return Robust(method, rule) if (rule := settings.rule) is not None else method


def _transformed(method: Algorithm, settings: UploadSettings, transform: Transform) -> Algorithm:
    vectors = {*method.told, *method.averaged(PROBE)}
    if not vectors:
        raise FedapmError(
            f"{method.label} does not say what its messages are changes of (told, averaged), so [{TABLE}] cannot "
            "withhold a part of them; leave it out."
        )
    if transform.clip is not None and len(vectors) > 1:
        raise FedapmError(
            f"{method.label} sends {len(vectors)} vectors of different units, so {TABLE}.clip does not say how long "
            "they may be; leave it out."
        )
    if not settings.mask:
        return Transmitted(method, transform)
    if getattr(method.plain, "rho", None) == "balanced":
        raise FedapmError(
            f'algorithm.rho = "balanced" sends numbers that {TABLE}.mask does not cover; take "auto" or a number.'
        )
    return Masked(Transmitted(method, transform), settings.point, settings.threshold)


def _check_screened(method: Algorithm, settings: UploadSettings, uniform: bool) -> None:
    """Refuse what a robust mean would not be one of."""
    plain = settings.aggregate in (None, "mean")
    what = f"{TABLE}.norm_limit" if plain else f'{TABLE}.aggregate = "{settings.aggregate}"'
    if len(vectors := {*method.told, *method.averaged(PROBE)}) != 1:
        raise FedapmError(
            f"{what} is for methods that send one vector and say what it is a change of (told, averaged); "
            f"{method.label} has {len(vectors)}. Leave it out."
        )
    if not uniform:
        raise FedapmError(f"{what} counts all clients alike; leave engine.weights out.")
    if getattr(method.plain, "rho", None) == "balanced":
        raise FedapmError(
            f'algorithm.rho = "balanced" follows numbers that any client may forge, which {what} does not look at; '
            'take "auto" or a number.'
        )
    if settings.broadcast is not None and settings.aggregate == "centered-clipping":
        raise FedapmError(f"{what} sends the last mean beside the model, whole; leave {TABLE}.broadcast out.")


def _own(state: State) -> State:
    """What the method itself keeps."""
    return State(**{name: value for name, value in state.items() if not name.startswith(UNSENT)})
