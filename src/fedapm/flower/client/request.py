"""What the server asks of a node: each field of its messages checked before any of it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.experiments.settings import Experiment
from fedapm.flower.fields import flag, items, number, table, text, whole
from fedapm.flower.text import one_line, shown
from fedapm.flower.transport.codec import Fields, Tensors
from fedapm.flower.transport.mask_keys import SignedKey
from fedapm.flower.transport.version import round_of
from fedapm.simulation.stores.base import restore
from fedapm.uploads import Announced

RUN, TOKEN, DIGEST = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{12}"), re.compile(r"[0-9a-f]{64}")
CLIENTS, SAMPLES, CLASSES, ROUNDS = 10**6, 10**12, 10**6, 10**9
"""The most that a message may speak of."""
ID, PARAMETERS, DIMENSIONS, DAYS = 1000, 100_000, 16, 366 * 86400.0
HEADER = ("protocol", "run", "token")
HELLO = ("protocol", "run", "hello", "settings")
ROUND = (
    *HEADER, "settings", "client", "position", "m", "samples", "batches", "classes", "u0", "down", "round", "evaluate",
    "closing", "finish", "accepted", "keep", "train", "limit",
)  # fmt: skip
BASE, MASK = "base", "mask"
CORRECTION = "correction/"
"""What the tensors begin with that say what was counted of the last accepted reply."""
AGAIN = (*HEADER, "client", "position", "again")
NONCE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class HelloRequest:
    """The question which client a node is."""

    run: str
    clients: list[str]
    experiment: Experiment


@dataclass(frozen=True)
class MaskRequest:
    """For whom a message is masked."""

    nonce: str
    clients: list[str]
    keys: dict[str, SignedKey]
    """The public keys of those clients, as far as the node may not have them."""


@dataclass(frozen=True)
class AgainRequest:
    """The request to mask the message of a round once more, for fewer clients."""

    run: str
    token: str
    client: str
    position: int
    round: int
    mask: MaskRequest


@dataclass(frozen=True)
class RoundRequest:
    """The work of one round."""

    run: str
    token: str
    client: str
    position: int
    experiment: Experiment
    m: int
    samples: int
    classes: int
    batches: float
    shapes: dict[str, list[int]]
    """Names and shapes of the shared parameters."""
    digest: str
    """A checksum of u⁰."""
    down: Mapping[str, Any]
    """What describes the broadcast's tensors."""
    round: int
    evaluate: bool
    closing: int
    """Epochs of the closing phase."""
    finish: bool
    """Whether the model is written."""
    accepted: str
    keep: str
    train: int | None
    """The round to train in."""
    base: str | None = None
    """The token of the announcement whose broadcast this one is a change of; None where it is whole."""
    mask: MaskRequest | None = None
    """For whom the result of training is masked; None where it is not."""
    frozen: str = ""
    """A checksum of what is frozen in the network; empty where nothing is."""


def read_hello(fields: Fields) -> HelloRequest:
    """The question which client a node is, or an error that says what is wrong with it."""
    table(fields, "the server's message", HELLO, HELLO)
    clients = [text(client, "a client's id", ID) for client in items(fields["hello"], "the list of clients", CLIENTS)]
    if len(set(clients)) != len(clients):
        raise FedapmError("the server names a client twice.")
    return HelloRequest(text(fields["run"], "the run's id", 100), clients, _experiment(fields["settings"]))


def read_round(fields: Fields) -> RoundRequest:
    """The work of one round, or an error that says what is wrong with the message."""
    table(fields, "the server's message", (*ROUND, BASE, MASK), ROUND)
    m = whole(fields["m"], "the number of clients", 1, CLIENTS)
    round = whole(fields["round"], "the round", 0, ROUNDS)
    train, accepted, keep = fields["train"], fields["accepted"], fields["keep"]
    if train is not None and whole(train, "the round to train in", 1, ROUNDS) != round + 1:
        raise FedapmError(f"the server asks for round {train} after round {round}.")
    for version in (accepted, keep):
        round_of(text(version, "a version", 40))
    start = table(fields["u0"], "the start", ("digest", "shapes", "frozen"), ("digest", "shapes"))
    return RoundRequest(
        _matched(fields["run"], "the run's id", RUN),
        _matched(fields["token"], "the announcement's token", TOKEN),
        text(fields["client"], "the client's id", ID),
        whole(fields["position"], "the client's position", 0, m - 1),
        _experiment(fields["settings"]),
        m,
        whole(fields["samples"], "the number of all samples", 1, SAMPLES),
        whole(fields["classes"], "the number of classes", 0, CLASSES),
        number(fields["batches"], "the mean number of batches", 0.0, SAMPLES),
        _shapes(start["shapes"]),
        _matched(start["digest"], "the digest of the start", DIGEST),
        table(fields["down"], "the note of the broadcast", fields["down"] if isinstance(fields["down"], dict) else ()),
        round,
        flag(fields["evaluate"], "the field 'evaluate'"),
        whole(fields["closing"], "the epochs of the closing phase", 0, ROUNDS),
        flag(fields["finish"], "the field 'finish'"),
        accepted,
        keep,
        train,
        _matched(fields[BASE], "the token of the broadcast before", TOKEN) if fields.get(BASE) is not None else None,
        _mask(fields[MASK]) if fields.get(MASK) is not None else None,
        _matched(start["frozen"], "the digest of what is frozen", DIGEST) if "frozen" in start else "",
    )


def read_again(fields: Fields) -> AgainRequest:
    """The request to mask a message once more, or an error that says what is wrong with it."""
    table(fields, "the server's message", AGAIN, AGAIN)
    again = table(fields["again"], "the field 'again'", ("round", MASK), ("round", MASK))
    return AgainRequest(
        _matched(fields["run"], "the run's id", RUN),
        _matched(fields["token"], "the announcement's token", TOKEN),
        text(fields["client"], "the client's id", ID),
        whole(fields["position"], "the client's position", 0, CLIENTS),
        whole(again["round"], "the round", 1, ROUNDS),
        _mask(again[MASK]),
    )


def _mask(value: Any) -> MaskRequest:
    fields = table(value, "the field 'mask'", ("nonce", "clients", "keys"), ("nonce", "clients", "keys"))
    clients = [text(client, "a client's id", ID) for client in items(fields["clients"], "the clients of a sum")]
    if len(set(clients)) != len(clients):
        raise FedapmError("the server names a client of a sum twice.")
    keys = table(fields["keys"], "the mask keys", clients)
    read = {client: SignedKey.read(key, client) for client, key in keys.items()}
    return MaskRequest(_matched(fields["nonce"], "the nonce", NONCE), clients, read)


def time_limit(fields: Fields) -> float:
    """Seconds after which nobody waits for the reply to a message."""
    return number(fields.get("limit", DAYS), "the time limit", 0.0, DAYS)


def read_broadcast(note: Mapping[str, Any], tensors: Tensors, like: State) -> State:
    """The server's broadcast, which must have the names, shapes and types of the method's own.

    Args:
        note: What describes the tensors.
        tensors: The tensors.
        like: What the method broadcasts at the start.
    """
    _check_note(note, like)
    _check_tensors(tensors, {f"down/{f}/{name}": t for f, value in like.vectors.items() for name, t in value.items()})
    return _finite(State(**restore("down", tensors, note)))


def read_change(note: Mapping[str, Any], tensors: Tensors, like: State, before: State, layer: Announced) -> State:
    """The server's broadcast, from the one before and its change.

    Args:
        note: What describes the broadcast.
        tensors: The change, as it was sent.
        like: What the method broadcasts at the start.
        before: The broadcast before.
        layer: What knows how changes are sent.
    """
    _check_note(note, like)
    start = "change/step/"
    _check_tensors(tensors, {start + name: t for name, t in layer.still(like).items()})
    change = Vec({label.removeprefix(start): tensor for label, tensor in tensors.items()})
    vectors = layer.added(before.vectors, change)
    return _finite(State(**{f: vectors[f] if isinstance(v, Vec) else float(note[f]) for f, v in like.items()}))


def read_correction(tensors: Tensors, state: State, method: Algorithm) -> dict[str, Vec]:
    """What the server counted of the accepted version minus what was sent, which must fit what the client keeps.

    Args:
        tensors: Those tensors of the message that speak of it, if any.
        state: What the client keeps.
        method: The method.
    """
    if not tensors:
        return {}
    fields = {name: state.vectors[field] for name, field in method.told.items()}
    expected = {f"{CORRECTION}{name}/{part}": t for name, vector in fields.items() for part, t in vector.items()}
    _check_tensors(tensors, expected)
    found = {name: Vec({part: tensors[f"{CORRECTION}{name}/{part}"] for part in v}) for name, v in fields.items()}
    if not all(vector.is_finite() for vector in found.values()):
        raise FedapmError("the correction of what was sent is not finite.")
    return found


def _check_note(note: Mapping[str, Any], like: State) -> None:
    if set(note) != set(like):
        raise FedapmError(f"the broadcast holds {_listed(note)}, not {_listed(like)}.")
    for field, value in like.items():
        if not isinstance(value, Vec):
            number(note[field], f"the broadcast's {field}")
        elif note[field] != list(value.names):
            raise FedapmError(f"the broadcast's {field} has other parameters than the network.")


def _check_tensors(tensors: Tensors, expected: Mapping[str, Tensor]) -> None:
    for odd in sorted(set(tensors) ^ set(expected)):
        raise FedapmError(f"the broadcast {'lacks' if odd in expected else 'also holds'} {shown(odd)}.")
    for label, right in expected.items():
        tensor = tensors[label]
        if tensor.shape != right.shape or tensor.dtype != right.dtype:
            there, here = f"{list(tensor.shape)} {tensor.dtype}", f"{list(right.shape)} {right.dtype}"
            _, field, name = label.split("/", 2)
            raise FedapmError(f"the broadcast's {field} has {name!r} as {one_line(there, 80)}, not {here}.")


def _finite(broadcast: State) -> State:
    if not broadcast.is_finite():
        raise FedapmError("the broadcast is not finite.")
    return broadcast


def _experiment(settings: Any) -> Experiment:
    tables = table(settings, "the experiment", settings if isinstance(settings, dict) else ())
    try:
        return Experiment.from_tables(dict(tables))
    except RecursionError:
        raise FedapmError("the experiment's settings are nested too deeply.") from None


def _matched(value: Any, what: str, pattern: re.Pattern[str]) -> str:
    if pattern.fullmatch(text(value, what, 100)) is None:
        raise FedapmError(f"{what} is {shown(value)}.")
    return str(value)


def _shapes(value: Any) -> dict[str, list[int]]:
    shapes = table(value, "the shapes of the start", value if isinstance(value, dict) else ())
    if len(shapes) > PARAMETERS:
        raise FedapmError(f"the start names {len(shapes)} parameters; at most {PARAMETERS} are allowed.")
    return {
        name: [whole(n, "a size of the start", 0, SAMPLES) for n in items(shape, "a shape of the start", DIMENSIONS)]
        for name, shape in shapes.items()
    }


def _listed(names: Any) -> str:
    return one_line(", ".join(map(str, names)) or "nothing", 100)
