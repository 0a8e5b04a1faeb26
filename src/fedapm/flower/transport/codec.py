"""What travels: a note in JSON, and all vectors of a message as one block of safetensors, in Flower's records.

One block, because Flower moves every array as an object of its own, each with requests of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import safetensors
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load, save
from torch import Tensor

from fedapm.core.vec import Vec
from fedapm.errors import FedapmError

PROTOCOL = 1
"""Raised whenever the two sides would not understand each other's notes."""
NOTE, VECTORS, FORMAT = "note", "vectors", "safetensors"

Note = dict[str, Any]
Tensors = dict[str, Tensor]


def block(tensors: Mapping[str, Tensor]) -> ArrayRecord | None:
    """Tensors as the one array of a message; None where there are none."""
    if not tensors:
        return None
    # copies, because safetensors refuses two names for the same memory
    stored = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()}
    data = save(stored)
    return ArrayRecord({FORMAT: Array("uint8", (len(data),), FORMAT, data)})


def records(note: Mapping[str, Any], vectors: ArrayRecord | None = None) -> RecordDict:
    """A message's content."""
    made = RecordDict({NOTE: ConfigRecord({"json": json.dumps(note)})})
    if vectors is not None:
        made[VECTORS] = vectors
    return made


def size(content: RecordDict) -> int:
    """The bytes of a message's note and vectors."""
    note, vectors = content.get(NOTE), content.get(VECTORS)
    text = note.get("json") if isinstance(note, ConfigRecord) else None
    arrays = vectors.values() if isinstance(vectors, ArrayRecord) else ()
    return (len(text.encode()) if isinstance(text, str) else 0) + sum(len(array.data) for array in arrays)


def decode(content: RecordDict) -> tuple[Note, Tensors]:
    """A message's note and tensors; whatever is not of this form is refused."""
    odd = sorted(set(content) - {NOTE, VECTORS})
    if odd:
        raise FedapmError(f"a message holds an unknown record {odd[0]!r}.")
    return _note(content), _tensors(content)


def _note(content: RecordDict) -> Note:
    record = content.get(NOTE)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    try:
        note = json.loads(text) if isinstance(text, str) else None
    except ValueError as error:
        raise FedapmError(f"a message's note is not JSON ({error}).") from None
    if not isinstance(note, dict):
        raise FedapmError("a message has no note.")
    return note


def _tensors(content: RecordDict) -> Tensors:
    record = content.get(VECTORS)
    if record is None:
        return {}
    array = record.get(FORMAT) if isinstance(record, ArrayRecord) else None
    if array is None or set(record) != {FORMAT} or array.stype != FORMAT:
        raise FedapmError("a message's vectors are not one block of safetensors.")
    try:
        found = load(array.data)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise FedapmError(f"a message's vectors cannot be read ({str(error).splitlines()[0]}).") from None
    # copies, because some kernels round by alignment and a block's tensors begin anywhere
    return {n: t.clone() for n, t in found.items()}


def shapes(vector: Vec) -> dict[str, list[int]]:
    """Names and shapes, as a note holds them."""
    return {n: list(t.shape) for n, t in vector.items()}


def digest(vector: Vec) -> str:
    """Equal for vectors that agree in names, types, shapes and every bit of value."""
    made = hashlib.sha256()
    for name, tensor in vector.items():
        made.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        made.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()
