"""Encode and decode messages: JSON fields, and all tensors as one block of safetensors, in Flower's records.

One block, because Flower moves every array as an object of its own, with requests of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load, save
from torch import Tensor

from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.text import one_line, shown

PROTOCOL = 3
"""Raised whenever the two sides would no longer understand each other's messages."""
FIELDS, TENSORS, FORMAT = "note", "vectors", "safetensors"
"""The names of a message's two records, and of the one array in the second."""

NOTE_LIMIT = 4 << 20
"""The most bytes of JSON fields in a message."""
BLOCK_LIMIT = 2 << 30
"""The most bytes of tensors in a message, where nothing more exact is known."""
BLOCK_SPARE = 1 << 16
"""What a block may hold beside the numbers of its tensors: names, shapes, padding."""

Fields = dict[str, Any]
"""A message's JSON fields."""
Tensors = dict[str, Tensor]


def block_limit(numbers: int, tensors: int) -> int:
    """The most bytes a block of so many tensors may have whose numbers take so many bytes."""
    return numbers + 1024 * tensors + BLOCK_SPARE


def block(tensors: Mapping[str, Tensor]) -> ArrayRecord | None:
    """Pack tensors into the one array of a message; None where there are none."""
    if not tensors:
        return None
    # copies, because safetensors refuses two names for the same memory
    stored = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()}
    data = save(stored)
    return ArrayRecord({FORMAT: Array("uint8", (len(data),), FORMAT, data)})


def records(fields: Mapping[str, Any], tensors: ArrayRecord | None = None) -> RecordDict:
    """A message's content, from its fields and its packed tensors (:func:`block`)."""
    content = RecordDict({FIELDS: ConfigRecord({"json": json.dumps(fields)})})
    if tensors is not None:
        content[TENSORS] = tensors
    return content


def size(content: RecordDict) -> int:
    """The bytes of a message's fields and tensors."""
    fields, tensors = content.get(FIELDS), content.get(TENSORS)
    text = fields.get("json") if isinstance(fields, ConfigRecord) else None
    arrays = tensors.values() if isinstance(tensors, ArrayRecord) else ()
    return (len(text.encode(errors="replace")) if isinstance(text, str) else 0) + sum(
        len(array.data) for array in arrays
    )


def decode(content: RecordDict, limit: int = BLOCK_LIMIT) -> tuple[Fields, Tensors]:
    """A message's fields and tensors.

    Args:
        content: What was received.
        limit: The most bytes its tensors may have; a larger block is refused before it is read.

    Raises:
        FedapmError: If the content is not what :func:`records` makes.
    """
    unknown = sorted(set(content) - {FIELDS, TENSORS})
    if unknown:
        raise FedapmError(f"a message holds an unknown record {shown(unknown[0])}.")
    return _fields(content), _tensors(content, limit)


def _fields(content: RecordDict) -> Fields:
    record = content.get(FIELDS)
    text = record.get("json") if isinstance(record, ConfigRecord) and len(record) == 1 else None
    if not isinstance(text, str):
        raise FedapmError("a message has no fields.")
    if len(text) > NOTE_LIMIT:
        raise FedapmError(f"a message's fields have {len(text)} characters; at most {NOTE_LIMIT} are allowed.")
    try:
        fields = json.loads(text)
    except RecursionError:
        raise FedapmError("a message's fields are nested too deeply.") from None
    except ValueError as error:
        raise FedapmError(f"a message's fields are not JSON ({one_line(str(error))}).") from None
    if not isinstance(fields, dict):
        raise FedapmError("a message has no fields.")
    return fields


def _tensors(content: RecordDict, limit: int) -> Tensors:
    record = content.get(TENSORS)
    if record is None:
        return {}
    array = record.get(FORMAT) if isinstance(record, ArrayRecord) else None
    if array is None or set(record) != {FORMAT} or array.stype != FORMAT:
        raise FedapmError("a message's tensors are not one block of safetensors.")
    if len(array.data) > limit:
        raise FedapmError(f"a message's tensors have {len(array.data)} bytes; at most {limit} are allowed.")
    try:
        tensors = load(array.data)
    except Exception as error:  # safetensors and torch raise many types for damaged bytes
        raise FedapmError(
            f"a message's tensors cannot be read ({one_line(str(error) or type(error).__name__)})."
        ) from None
    # copies, because some kernels round by alignment and a block's tensors begin anywhere
    return {n: t.clone() for n, t in tensors.items()}


def shapes(vector: Vec) -> dict[str, list[int]]:
    """Names and shapes, as JSON."""
    return {n: list(t.shape) for n, t in vector.items()}


def digest(vector: Vec) -> str:
    """A checksum: equal for vectors that agree in names, types, shapes and every bit of their values."""
    checksum = hashlib.sha256()
    for name, tensor in vector.items():
        checksum.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        checksum.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return checksum.hexdigest()
