"""Arena: a piece of memory that processes share, and how vectors are laid out in it.

Tensors go through it as bytes; what describes them is a note of plain numbers and names. Nothing is pickled.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedapm.core.algorithm import Value
from fedapm.simulation.stores.base import flatten, restore

ALIGNMENT = 64
DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}

Fields = Mapping[str, Value]
Note = dict[str, Any]


class OutOfSpace(Exception):
    """What is to be written does not fit."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class SharedMemory:
    """Memory that a process shares with those it forks."""

    def __init__(self, size: int) -> None:
        self.size = max(size, mmap.PAGESIZE)
        self._memory = mmap.mmap(-1, self.size)

    def write(self, groups: Mapping[str, Fields]) -> Note:
        """Put groups of named vectors and numbers in place; the note says how to find them again."""
        tensors: dict[str, Tensor] = {}
        fields: dict[str, Any] = {}
        for group, content in groups.items():
            flat, fields[group] = flatten(group, content)
            tensors |= flat
        places: dict[str, Any] = {}
        end = 0
        for name, tensor in tensors.items():
            places[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end]
            end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        if end > self.size:
            raise OutOfSpace(end)
        for name, tensor in tensors.items():
            self._at(*places[name]).copy_(tensor.detach())
        return {"fields": fields, "places": places}

    def read(self, note: Note) -> dict[str, dict[str, Value]]:
        """Copies of what a note describes."""
        tensors = {name: self._at(*place).clone() for name, place in note["places"].items()}
        return {group: restore(group, tensors, fields) for group, fields in note["fields"].items()}

    def _at(self, dtype: str, shape: list[int], offset: int) -> Tensor:
        kind = DTYPES[dtype]
        count = 1
        for length in shape:
            count *= length
        if not count:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(self._memory, dtype=kind, count=count, offset=offset).view(shape)
