"""Replies: parses and checks a client's reply before any of it is used.

Every field has a type, a range and a length. A reply with anything else is refused as a whole and named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedapm.core.algorithm import Upload
from fedapm.core.metrics import Metric, Score
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.fields import LARGEST, flag, items, number, table, text, whole
from fedapm.flower.problem import WIRE, Template, UploadForm
from fedapm.flower.text import one_line, shown
from fedapm.flower.transport import codec
from fedapm.flower.transport.version import VERSION

FIELDS = (
    "protocol", "run", "token", "client", "refused", "remarks", "lost", "has", "why", "scores", "closing_scores",
    "drift", "trained", "spending",
)  # fmt: skip
"""All that a reply may hold."""
TEXT = 10_000
"""The longest text in a reply; of what is shown or stored, much less is kept."""
REMARKS = 20
"""How many remarks are kept of a reply."""
SHARE = 1e-6
"""How far rounding may take a share of one beyond 0 or 1."""
STEPS = 10**12
"""The most steps, and epochs, of a solver."""


class Stale(FedapmError):
    """A reply to another announcement."""


class Refused(FedapmError):
    """The client itself refuses the message."""


@dataclass(frozen=True)
class TrainReply:
    """What the server learns of a client's training."""

    upload: Upload
    log: list[SolveStats]


@dataclass(frozen=True)
class Spending:
    """What the samples of a client have spent."""

    steps: int
    epsilon: float


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
    blank: Vec | None = None
    """The masked zeros of a client whose update is not finite."""
    closing_scores: dict[str, dict[str, Score]] | None = None
    """Its scores after the closing phase, where there was one."""
    exhausted: bool = False
    """Whether its privacy budget is spent."""
    spending: Spending | None = None
    """What it has spent, where its owner lets it tell."""


@dataclass(frozen=True)
class ReplyForm:
    """What all replies of a run have in common."""

    upload: UploadForm
    views: Sequence[str]
    metrics: Sequence[Metric]
    gaps: int
    """How many distances a drift may have."""

    @property
    def limit(self) -> int:
        """The most bytes of tensors in a reply."""
        forms = [form for parts in self.upload.template.values() for form in parts.values()]
        numbers = sum(math.prod(shape) * torch.empty((), dtype=dtype).element_size() for shape, dtype in forms)
        return codec.block_limit(numbers, len(forms))


@dataclass(frozen=True)
class Expected:
    """What a valid reply of one client to one announcement looks like."""

    form: ReplyForm
    run: str
    token: str
    client: str
    accepted: str
    """The version the client was told to continue from."""
    round: int | None
    """The round to train in; None if the client only evaluates."""
    evaluated: bool
    closed: bool
    """Whether the closing phase was asked for."""
    weight: float | None
    """The weight its upload must have, by its registered samples; None where the method has weights of its own."""
    heaviest: float
    """The largest weight it may have, in any method."""
    certain: Mapping[str, Mapping[str, float]]
    """Numbers its upload must hold whatever the client's data is."""
    unit: float = 1.0
    """What its upload is a change of the model times."""
    discreet: bool = False
    """Whether clients tell nothing beside their updates but what their owners allow."""
    spends: bool = False
    """Whether clients have a privacy budget each."""


def read(note: codec.Fields, tensors: codec.Tensors, expected: Expected) -> ClientReply:
    """Parse a reply, or raise an error that says what is wrong with it."""
    for key, value in (("run", expected.run), ("token", expected.token)):
        if note.get(key) != value:
            raise Stale(f"its answer is to another announcement ({key} {shown(note.get(key))}).")
    table(note, "its reply", FIELDS, ("protocol",))
    if note["protocol"] != codec.PROTOCOL or isinstance(note["protocol"], bool):
        raise FedapmError(f"it speaks protocol {shown(note['protocol'])}, the server {codec.PROTOCOL}.")
    if "refused" in note:
        raise Refused(one_line(text(note["refused"], "its refusal", TEXT)) or "it refuses without a reason.")
    if note.get("client") != expected.client:
        raise FedapmError(f"it answers as client {shown(note.get('client'))}.")
    remarks = _remarks(note.get("remarks", []))
    if "lost" in note:
        return ClientReply(lost=_lost(note, expected), remarks=remarks)
    exhausted, spending = _spending(note.get("spending"), expected)
    _check_fields(note, expected, exhausted)
    reply = ClientReply(
        _scores(note.get("scores"), "scores", expected) if expected.evaluated else None,
        _drift(note.get("drift"), expected),
        remarks=remarks,
        closing_scores=_scores(note.get("closing_scores"), "closing scores", expected) if expected.closed else None,
        exhausted=exhausted,
        spending=spending,
    )
    if expected.round is None or "trained" not in note:
        if tensors:
            raise FedapmError("its reply holds tensors that were not asked for.")
        return reply if expected.round is None else replace(reply, bad="its privacy budget is spent")
    trained = _trained(note["trained"], tensors, expected)
    if trained is None:
        blank = _blank(note["trained"], tensors, expected) if expected.form.upload.masked else None
        return replace(reply, bad="its update is not finite", diverged=True, blank=blank)
    return replace(reply, trained=trained)


def _check_fields(note: codec.Fields, expected: Expected, exhausted: bool) -> None:
    """Refuse a reply without what was asked for, or with what was not."""
    asked = {"scores"} if expected.evaluated else set()
    asked |= {"closing_scores"} if expected.closed else set()
    optional = {"drift"} if expected.evaluated else set()
    if expected.discreet:
        optional |= asked
    if expected.round is not None:
        asked.add("trained")
        optional |= {"trained"} if exhausted else set()
    for key in ("scores", "closing_scores", "trained", "drift", "has", "why"):
        if (key in note) != (key in asked) and key not in optional:
            raise FedapmError(f"its reply {'lacks' if key in asked else 'has'} the field {key!r}.")


def _spending(value: Any, expected: Expected) -> tuple[bool, Spending | None]:
    """Whether the client's budget is spent, and what it tells of its spending."""
    if value is None:
        return False, None
    if not expected.spends:
        raise FedapmError("its reply has the field 'spending'.")
    fields = table(value, "its spending", ("exhausted", "steps", "epsilon"), ("exhausted",))
    told = None
    if "epsilon" in fields:
        steps = whole(fields.get("steps"), "its noised steps", 0, STEPS)
        told = Spending(steps, number(fields["epsilon"], "its ε", 0.0, finite=False))
    return flag(fields["exhausted"], "its field 'exhausted'"), told


def _remarks(value: Any) -> tuple[str, ...]:
    lines = [one_line(text(remark, "one of its remarks", codec.NOTE_LIMIT)) for remark in items(value, "its remarks")]
    return tuple(line for line in lines[:REMARKS] if line)


def _lost(note: codec.Fields, expected: Expected) -> str:
    if not expected.accepted or note["lost"] != expected.accepted:
        raise FedapmError(f"it says that it lost version {shown(note['lost'])}, which it was not asked for.")
    has = [text(version, "one of its versions", 40) for version in items(note.get("has", []), "its versions")]
    if odd := next((version for version in has if VERSION.fullmatch(version) is None), None):
        raise FedapmError(f"it says that it has {shown(odd)}, which is not a version id.")
    text(note.get("why", ""), "its reason", TEXT)
    listed = ", ".join(has[-3:]) or "nothing"
    return f"the server accepted version {expected.accepted}, it has {listed}"


def _trained(value: Any, tensors: codec.Tensors, expected: Expected) -> TrainReply | None:
    """The result of training; None where it is not finite."""
    fields = table(value, "its result", ("round", "finite", "weight", "sums", "log"), ("round", "finite"))
    if whole(fields["round"], "the round of its result", 0, STEPS) != expected.round:
        raise FedapmError(f"it has no result of round {expected.round}, but of {fields['round']}.")
    if not flag(fields["finite"], "its field 'finite'"):
        return None
    table(fields, "its result", fields, ("weight", "sums", "log"))
    form = expected.form.upload
    sent = _sums(fields["sums"], tensors, form.template)
    weight = number(fields["weight"], "its weight", 0.0, expected.heaviest)
    if not weight or (expected.weight is not None and weight != expected.weight):
        right = "a positive one" if expected.weight is None else f"{expected.weight:g}, by its registered samples"
        raise FedapmError(f"its weight is {weight:g}, not {right}.")
    log = [_solved(solved) for solved in items(fields["log"], "its log")]
    wire = None if form.decode is None else sent[WIRE]
    if wire is not None and not wire.is_finite():
        return None
    sums = sent if form.decode is None else form.decode(sent[WIRE])
    upload = Upload(sums, weight, expected.unit, wire)
    if not upload.is_finite():
        return None
    for name, numbers in expected.certain.items():
        for part, sure in numbers.items():
            found = float(sums[name][part])
            if not math.isclose(found, sure, rel_tol=1e-6):
                raise FedapmError(f"its {name} has {part} = {found:g}, which must be {sure:g} in this round.")
    return TrainReply(upload, log)


def read_again(
    note: codec.Fields, tensors: codec.Tensors, header: Mapping[str, Any], round: int, form: UploadForm
) -> Vec:
    """A message that was masked once more, or an error that says what is wrong with the reply.

    Args:
        note: The reply's fields.
        tensors: Its tensors.
        header: The fields that must be as they were asked.
        round: The round it must be of.
        form: What uploads look like.
    """
    table(note, "its reply", (*header, "refused", "again"))
    if "refused" in note:
        raise Refused(one_line(text(note["refused"], "its refusal", TEXT)) or "it refuses without a reason.")
    for key, value in header.items():
        if note.get(key) != value:
            raise FedapmError(f"its answer is to another question ({key} {shown(note.get(key))}).")
    fields = table(note.get("again"), "its result", ("round", "sums"), ("round", "sums"))
    if fields["round"] != round:
        raise FedapmError(f"it has no result of round {round}, but of {shown(fields['round'])}.")
    return _sums(fields["sums"], tensors, form.template)[WIRE]


def _blank(value: Any, tensors: codec.Tensors, expected: Expected) -> Vec:
    """Masked zeros, which make the masks of others cancel."""
    fields = table(value, "its result", ("round", "finite", "sums"), ("round", "finite", "sums"))
    return _sums(fields["sums"], tensors, expected.form.upload.template)[WIRE]


def _sums(names: Any, tensors: codec.Tensors, template: Template) -> dict[str, Vec]:
    if not isinstance(names, Mapping) or names != {name: list(parts) for name, parts in template.items()}:
        raise FedapmError(f"its upload holds {_listed(names)}, not {_listed(template)} of the network's parameters.")
    labels = {f"sums/{name}/{part}" for name, parts in template.items() for part in parts}
    for odd in sorted(set(tensors) ^ labels):
        raise FedapmError(f"its upload {'lacks' if odd in labels else 'also holds'} {shown(odd)}.")
    sums = {}
    for name, parts in template.items():
        sums[name] = Vec({part: tensors[f"sums/{name}/{part}"] for part in parts})
        for part, (shape, dtype) in parts.items():
            tensor = sums[name][part]
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                there = f"{one_line(str(tuple(tensor.shape)), 80)} and {tensor.dtype}"
                raise FedapmError(f"its {name} has {part!r} of shape {there}, not {shape} and {dtype}.")
    return sums


def _solved(value: Any) -> SolveStats:
    """What the solver did in one call; a loss or residual that diverged may be no number."""
    fields = table(value, "an entry of its log", ("epochs", "loss", "xi", "residual", "steps"), ("epochs", "loss"))
    loss, xi, residual = (fields.get(name) for name in ("loss", "xi", "residual"))
    return SolveStats(
        number(fields["epochs"], "the epochs in its log", 0, STEPS),
        None if loss is None else number(loss, "a loss in its log", finite=False),
        None if xi is None else number(xi, "ξ in its log", 0.0),
        None if residual is None else number(residual, "a residual in its log", 0.0, finite=False),
        whole(fields.get("steps", 0), "the steps in its log", 0, STEPS),
    )


def _scores(value: Any, what: str, expected: Expected) -> dict[str, dict[str, Score]]:
    names = [metric.name for metric in expected.form.metrics]
    if value is None and expected.discreet:
        return {view: dict.fromkeys(names) for view in expected.form.views}
    rows = table(value, f"its {what}", expected.form.views, expected.form.views)
    scores: dict[str, dict[str, Score]] = {}
    for view in expected.form.views:
        row = table(rows[view], f"its {what} of {view}", names, names)
        scores[view] = {metric.name: _score(row[metric.name], metric) for metric in expected.form.metrics}
    return scores


def _score(value: Any, metric: Metric) -> Score:
    if value is None:
        return None
    low, high = (-SHARE, 1 + SHARE) if metric.unit == "%" else (-LARGEST, LARGEST)
    return number(value, f"its {metric.name}", low, high, finite=False)


def _drift(value: Any, expected: Expected) -> list[float] | None:
    if value is None:
        return None
    gaps = [number(gap, "its drift", 0.0, finite=False) for gap in items(value, "its drift", expected.form.gaps)]
    return gaps if gaps and all(map(math.isfinite, gaps)) else None


def _listed(names: Any) -> str:
    return one_line(", ".join(map(str, names)) or "nothing", 100) if isinstance(names, Mapping) else "no sums"
