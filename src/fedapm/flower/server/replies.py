"""Replies: parses and checks a client's reply before any of it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapm.core.algorithm import Upload
from fedapm.core.metrics import Score
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.problem import Template
from fedapm.flower.transport import codec


class Stale(FedapmError):
    """A reply to an earlier message; it is ignored."""


@dataclass(frozen=True)
class TrainReply:
    """What the server learns of a client's training."""

    upload: Upload
    log: list[SolveStats]


@dataclass(frozen=True)
class ClientReply:
    """A client's reply to one announcement."""

    scores: dict[str, dict[str, Score]] | None = None
    drift: list[float] | None = None
    trained: TrainReply | None = None
    bad: str | None = None
    """Why its update cannot be used, if it cannot."""
    diverged: bool = False
    """Whether that is because the update is not finite."""
    lost: str | None = None
    """Which state it has instead of the one the server asked for."""
    remarks: tuple[str, ...] = ()
    closing_scores: dict[str, dict[str, Score]] | None = None
    """Its scores after the closing phase, where there was one."""


@dataclass(frozen=True)
class Expected:
    """What a valid reply looks like."""

    run: str
    token: str
    client: str
    round: int | None
    """The round to train in; None if the client only evaluates."""
    evaluated: bool
    template: Template
    views: Sequence[str]
    names: Sequence[str]


def read(note: codec.Fields, tensors: codec.Tensors, expected: Expected) -> ClientReply:
    """Parse a reply, or raise an error that says what is wrong with it."""
    for key, value in (("run", expected.run), ("token", expected.token)):
        if note.get(key) != value:
            raise Stale(f"its answer is to another announcement ({key} {note.get(key)!r}).")
    if "refused" in note:
        raise FedapmError(str(note["refused"]))
    if note.get("client") != expected.client:
        raise FedapmError(f"it answers as client {note.get('client')!r}.")
    remarks = tuple(str(text) for text in note.get("remarks", ()))
    if "lost" in note:
        has = ", ".join(map(str, note.get("has", ()))) or "nothing"
        return ClientReply(lost=f"the server accepted version {note['lost']}, it has {has}", remarks=remarks)
    scores = _scores(note.get("scores"), expected) if expected.evaluated else None
    drift = _numbers(note.get("drift")) if expected.evaluated and note.get("drift") is not None else None
    if expected.round is None:
        return ClientReply(scores, drift, remarks=remarks, closing_scores=_scores(note.get("closing_scores"), expected))
    trained = note.get("trained")
    if isinstance(trained, Mapping) and trained.get("finite") is False:
        return ClientReply(scores, drift, bad="its update is not finite", diverged=True, remarks=remarks)
    try:
        return ClientReply(scores, drift, _trained(trained, tensors, expected), remarks=remarks)
    except _NotFinite:
        return ClientReply(scores, drift, bad="its update is not finite", diverged=True, remarks=remarks)
    except FedapmError as error:
        return ClientReply(scores, drift, bad=str(error), remarks=remarks)


class _NotFinite(Exception):
    """An update that is not finite."""


def _trained(note: Any, tensors: codec.Tensors, expected: Expected) -> TrainReply:
    if not isinstance(note, Mapping) or note.get("round") != expected.round:
        raise FedapmError(f"it has no result of round {expected.round}.")
    sums = {}
    names = note.get("sums")
    if not isinstance(names, Mapping) or set(names) != set(expected.template):
        raise FedapmError(f"its upload holds {_listed(names)}, not {_listed(expected.template)}.")
    for name, parts in expected.template.items():
        tensors_of_sum = {
            n.removeprefix(f"sums/{name}/"): t for n, t in tensors.items() if n.startswith(f"sums/{name}/")
        }
        for odd in sorted(set(tensors_of_sum) ^ set(parts)):
            raise FedapmError(f"its {name} {'lacks' if odd in parts else 'also holds'} {odd!r}.")
        for part, (shape, dtype) in parts.items():
            if tuple(tensors_of_sum[part].shape) != shape or tensors_of_sum[part].dtype != dtype:
                there = f"{tuple(tensors_of_sum[part].shape)} and {tensors_of_sum[part].dtype}"
                raise FedapmError(f"its {name} has {part!r} of shape {there}, not {shape} and {dtype}.")
        sums[name] = Vec({part: tensors_of_sum[part] for part in parts})
    if len(tensors) != sum(map(len, expected.template.values())):
        raise FedapmError("its upload holds tensors that belong to no sum.")
    try:
        upload = Upload(sums, float(note["weight"]))
        log = [SolveStats(**solved) for solved in note["log"]]
    except (KeyError, TypeError, ValueError) as error:
        raise FedapmError(f"its upload is not complete ({error}).") from None
    if not upload.is_finite():
        raise _NotFinite
    if upload.weight < 0:
        raise FedapmError(f"its weight {upload.weight} is negative.")
    return TrainReply(upload, log)


def _scores(note: Any, expected: Expected) -> dict[str, dict[str, Score]] | None:
    if not isinstance(note, Mapping) or set(note) != set(expected.views):
        return None
    tensors_of_sum: dict[str, dict[str, Score]] = {}
    for view in expected.views:
        row = note[view]
        if not isinstance(row, Mapping) or set(row) != set(expected.names):
            return None
        if not all(v is None or isinstance(v, int | float) for v in row.values()):
            return None
        tensors_of_sum[view] = {name: None if row[name] is None else float(row[name]) for name in expected.names}
    return tensors_of_sum


def _numbers(note: Any) -> list[float] | None:
    if not isinstance(note, list) or not all(isinstance(v, int | float) and math.isfinite(v) for v in note):
        return None
    return [float(v) for v in note]


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing" if isinstance(names, Mapping) else "no sums"
