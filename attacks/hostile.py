"""Hostile messages: every field of an honest one with every bad value, bad tensors, and seeded mutations."""

from __future__ import annotations

import copy
import json
import operator
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors.torch import save

from fedapm.flower.transport.codec import FIELDS, FORMAT, NOTE_LIMIT, TENSORS

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], RecordDict]
"""Makes a hostile message of an honest one's fields and tensors."""

DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]
BAD: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "minus one": -1,
    "a fraction": 1.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "1e300": 1e300,
    "-1e300": -1e300,
    "a huge whole number": 10**400,
    "an empty text": "",
    "a text": "x",
    "escape codes": "\x1b[2J\x1b[31mred\x1b]0;title\x07\r\n",
    "half a surrogate": "\ud800",
    "a path": "../../../etc/passwd",
    "a long text": "a" * 1_000_000,
    "an empty list": [],
    "a list of lists": [[], [[]]],
    "a deep list": DEEP,
    "a long list": [0] * 100_000,
    "an empty object": {},
    "an object": {"a": {"b": 1}},
}
"""What no field may be, or only some."""


def packed(note: Any, tensors: dict[str, torch.Tensor] | bytes) -> RecordDict:
    """A message with any fields and tensors."""
    text = note if isinstance(note, str) else json.dumps(note)
    content = RecordDict({FIELDS: ConfigRecord({"json": text})})
    if tensors:
        data = tensors if isinstance(tensors, bytes) else save({n: t.contiguous().clone() for n, t in tensors.items()})
        content[TENSORS] = ArrayRecord({FORMAT: Array("uint8", (len(data),), FORMAT, data)})
    return content


def places(note: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every field of a message, and the first item of every list."""
    if path:
        yield path
    inner = note.items() if isinstance(note, dict) else [(0, note[0])] if isinstance(note, list) and note else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def changed(note: Any, path: tuple[str | int, ...], change: Callable[[Any, str | int], None]) -> Any:
    """A copy of a message in which one field is changed."""
    result = copy.deepcopy(note)
    holder = result
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return result


def bad_fields(note: dict[str, Any], skipped: tuple[str, ...] = ()) -> Iterator[tuple[str, Change]]:
    """Every field with every bad value, without each field, and with one more."""

    def edit(path: tuple[str | int, ...], change: Callable[[Any, Any], None]) -> Change:
        def made(own: dict[str, Any], tensors: dict[str, torch.Tensor]) -> RecordDict:
            try:
                return packed(changed(own, path, change), tensors)
            except (AttributeError, IndexError, KeyError, TypeError):
                # this message has no such place, as the drift of a client that was away
                return packed(changed({**own, path[0]: note[path[0]]}, path, change), tensors)

        return made

    def put(path: tuple[str | int, ...], value: Any) -> Change:
        return edit(path, lambda holder, key: operator.setitem(holder, key, value))

    for path in places(note):
        if path[0] in skipped and len(path) > 1:
            continue
        name = ".".join(map(str, path))
        for what, value in BAD.items():
            yield f"{name} is {what}", put(path, value)
        yield f"{name} is missing", edit(path, operator.delitem)
    yield "an unknown field", lambda own, tensors: packed({**own, "more": 1}, tensors)


def bad_records() -> Iterator[tuple[str, Change]]:
    """Messages whose form is wrong before any field is."""
    deep = "[" * 100_000 + "]" * 100_000
    texts = {
        "no JSON": "{",
        "no object": "3",
        "nothing": "",
        "nested 100,000 deep": '{"remarks": ' + deep + "}",
        "a number of 100,000 digits": '{"run": ' + "9" * 100_000 + "}",
        "fields beyond the limit": json.dumps({"remarks": ["x" * (NOTE_LIMIT + 1)]}),
    }
    for what, text in texts.items():
        yield what, lambda _, tensors, text=text: packed(text, tensors)
    yield "no record at all", lambda _, __: RecordDict()
    yield "an unknown record", lambda own, tensors: _with(packed(own, tensors), "more", ConfigRecord({"a": 1}))
    yield "metrics for fields", lambda own, tensors: _with(packed(own, tensors), FIELDS, MetricRecord({"a": 1}))
    yield "bytes for JSON", lambda own, tensors: _with(packed(own, tensors), FIELDS, ConfigRecord({"json": b"{}"}))
    yield "two configurations", lambda own, t: _with(packed(own, t), FIELDS, ConfigRecord({"json": "{}", "more": "x"}))
    yield "metrics for tensors", lambda own, tensors: _with(packed(own, tensors), TENSORS, MetricRecord({"a": 1}))
    array = Array("float32", (1,), "numpy.ndarray", b"\x80\x04.")
    yield "a pickle", lambda own, tensors: _with(packed(own, tensors), TENSORS, ArrayRecord({FORMAT: array}))


def bad_tensors(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, Change]]:
    """Every tensor with bad values, another form or name, and blocks that are damaged."""
    values = {"NaN": float("nan"), "infinity": float("inf"), "1e300": 1e300, "1e30": 1e30, "-1e30": -1e30}
    for name, tensor in tensors.items():
        forms: dict[str, torch.Tensor] = {what: torch.full_like(tensor, value) for what, value in values.items()}
        kinds = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8)
        forms |= {str(kind): tensor.to(kind) for kind in kinds if kind != tensor.dtype}
        forms |= {"flat": tensor.reshape(1, -1), "empty": tensor.reshape(-1)[:0], "longer": tensor.new_ones(100_000)}
        for what, form in forms.items():
            if form.shape != tensor.shape or form.dtype != tensor.dtype or not torch.equal(form, tensor):
                yield f"{name} is {what}", lambda own, now, n=name, t=form: packed(own, {**now, n: t})
        yield f"{name} is missing", lambda own, now, n=name: packed(own, {k: t for k, t in now.items() if k != n})
        yield (
            f"{name} has another name",
            lambda own, now, n=name: packed(own, {(k + "x" * (k == n)): t for k, t in now.items()}),
        )
    yield "no tensors", lambda own, _: packed(own, {})
    yield "one tensor more", lambda own, now: packed(own, {**now, "sums/more/x": torch.ones(3)})
    blocks: dict[str, Callable[[bytes], bytes]] = {
        "cut": lambda data: data[: len(data) // 2],
        "of zeros": lambda data: bytes(len(data)),
        "with an endless header": lambda data: struct.pack("<Q", 1 << 62) + data[8:],
        "without an end": lambda data: data + bytes(64),
        "beyond the limit": lambda data: data + bytes(50_000_000),
        "of one byte": lambda _: b"x",
    }
    for what, spoil in blocks.items():
        yield f"a block {what}", lambda own, now, spoil=spoil: packed(own, spoil(save(now)))


def mutations(count: int, seed: int) -> Iterator[tuple[str, Change]]:
    """Messages with a few bytes changed at random, in the fields or in the tensors."""
    for k in range(count):
        yield f"mutation {k} of seed {seed}", lambda own, now, k=k: _mutated(own, now, random.Random(f"{seed} {k}"))


def _mutated(own: dict[str, Any], tensors: dict[str, torch.Tensor], stream: random.Random) -> RecordDict:
    text, data = bytearray(json.dumps(own).encode()), bytearray(save(tensors) if tensors else b"")
    target = data if data and stream.random() < 0.5 else text
    for _ in range(stream.choice((1, 1, 2, 8, 64))):
        at = stream.randrange(len(target))
        match stream.randrange(4):
            case 0:
                target[at] = stream.randrange(256)
            case 1:
                del target[at : at + stream.randrange(1, 20)]
            case 2:
                target[at:at] = bytes(stream.choices(range(32, 127), k=stream.randrange(1, 20)))
            case _:
                target[at] ^= 1 << stream.randrange(8)
        if not target:
            break
    return packed(text.decode(errors="replace"), bytes(data))


def _other(name: str, renamed: str) -> str:
    return f"{name}x" if name == renamed else name


def _with(content: RecordDict, name: str, record: Any) -> RecordDict:
    content[name] = record
    return content
