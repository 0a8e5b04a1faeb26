"""Layout: a client's state as one row of bytes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedapm.core.algorithm import State
from fedapm.core.vec import Vec
from fedapm.simulation.stores.base import ClientState

ALIGNED = 64
"""Tensors begin at multiples of this, as those that torch makes itself do: some kernels round by alignment."""

Part = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
Key = tuple[tuple[tuple[str, Part | None], ...], Part]


@dataclass(frozen=True)
class Unpacked:
    """A client's memory as plain lists, and what these are."""

    key: Key
    """Names, types and shapes; equal for clients whose rows look the same."""
    numbers: list[float]
    tensors: list[Tensor]


def unpack(client_state: ClientState) -> Unpacked:
    """Take a client's memory apart."""
    fields: list[tuple[str, Part | None]] = []
    numbers: list[float] = []
    tensors: list[Tensor] = []

    def part(vector: Vec) -> Part:
        tensors_of_part = list(vector.items())
        tensors.extend(tensor for _, tensor in tensors_of_part)
        return tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors_of_part)

    for field, value in client_state.state.items():
        if isinstance(value, Vec):
            fields.append((field, part(value)))
        else:
            fields.append((field, None))
            numbers.append(float(value))
    return Unpacked((tuple(fields), part(client_state.buffers)), numbers, tensors)


class Layout:
    """A client's memory as one row of bytes: the numbers first, then every tensor, always contiguous."""

    def __init__(self, key: Key) -> None:
        self._state, self._buffers = key
        self._numbers = sum(part is None for _, part in self._state)
        parts = [part for _, part in self._state if part is not None]
        self._places: list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]] = []
        end = _aligned(8 * self._numbers)
        for _, dtype, shape in (place for part in (*parts, self._buffers) for place in part):
            self._places.append((dtype, shape, _strides(shape), end // dtype.itemsize))
            end = _aligned(end + math.prod(shape) * dtype.itemsize)
        self._dtypes = {dtype for dtype, *_ in self._places}
        self.size = max(end, ALIGNED)
        """The length of a row in bytes."""

    @property
    def key(self) -> Key:
        """What :func:`unpack` finds of every client with this layout."""
        return self._state, self._buffers

    @property
    def note(self) -> dict[str, Any]:
        """The layout as JSON, from which :meth:`of_note` makes it again."""
        state = [[field, None if part is None else _part_note(part)] for field, part in self._state]
        return {"state": state, "buffers": _part_note(self._buffers)}

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> Layout:
        """The inverse of :attr:`note`."""
        state = tuple((str(f), None if part is None else _noted_part(part)) for f, part in note["state"])
        return cls((state, _noted_part(note["buffers"])))

    @property
    def digest(self) -> str:
        """A short name that no other layout has."""
        return hashlib.sha256(json.dumps(self.note).encode()).hexdigest()[:16]

    def views(self, row: Tensor) -> list[Tensor]:
        """The tensors in a row of bytes, in order; they share its memory."""
        typed = {dtype: row.view(dtype) for dtype in self._dtypes}
        return [typed[dtype].as_strided(shape, strides, at) for dtype, shape, strides, at in self._places]

    def numbers(self, row: Tensor) -> npt.NDArray[np.float64]:
        """The numbers in a row of bytes; they share its memory."""
        tensors_of_part: npt.NDArray[np.float64] = row.numpy()[: 8 * self._numbers].view(np.float64)
        return tensors_of_part

    def read(self, row: Tensor, device: torch.device | str = "cpu") -> ClientState:
        """What stands in a row. It shares the row's memory, so the row must not be used again."""
        numbers, tensors = iter(self.numbers(row).tolist()), iter(self.views(row.to(device)))
        state = {
            field: next(numbers) if part is None else Vec({name: next(tensors) for name, _, _ in part})
            for field, part in self._state
        }
        return ClientState(State(**state), Vec({name: next(tensors) for name, _, _ in self._buffers}))


def _part_note(part: Part) -> list[Any]:
    return [[name, str(dtype).removeprefix("torch."), list(shape)] for name, dtype, shape in part]


def _noted_part(note: Any) -> Part:
    part = tuple((str(name), getattr(torch, dtype), tuple(map(int, shape))) for name, dtype, shape in note)
    for name, dtype, shape in part:
        if not isinstance(dtype, torch.dtype) or min(shape, default=0) < 0:
            raise ValueError(f"the type or shape of {name!r}")
    return part


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
