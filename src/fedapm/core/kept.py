"""Features of a frozen base, computed once for each sample: in memory up to a budget, in a temporary file beyond it."""

from __future__ import annotations

import math
import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedapm.core.samples import Samples

Pieces = Callable[[], Iterator[tuple[Tensor, ...]]]
"""Computes the features of some samples, batch by batch."""


@dataclass(frozen=True)
class _Entry:
    samples: weakref.ref[Samples]
    features: tuple[Tensor, ...]
    bytes: int
    """Of memory; zero where they are in a file."""


class KeptFeatures:
    """Features by the samples they are of and the base that made them. They are forgotten together with the samples."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, str], _Entry] = {}

    @property
    def used(self) -> int:
        """Bytes of memory that features take now."""
        return sum(entry.bytes for entry in self._entries.values())

    def features(self, samples: Samples, base: str, memory: int, compute: Pieces) -> tuple[Tensor, ...]:
        """The features of some samples; computed if they are not there.

        Args:
            samples: The samples; equal ones that are another object count as others.
            base: What makes the features, as a digest.
            memory: Bytes that features may take in memory, all together; others are put into a file.
            compute: Gives the features.
        """
        key = id(samples), base
        entry = self._entries.get(key)
        if entry is None or entry.samples() is not samples:
            entry = self._entries[key] = self._computed(samples, key, memory, compute)
        return entry.features

    def _computed(self, samples: Samples, key: tuple[int, str], memory: int, compute: Pieces) -> _Entry:
        columns: tuple[Tensor, ...] = ()
        start, taken = 0, 0
        for piece in compute():
            if not columns:
                size = sum(len(samples) * t[:1].numel() * t.element_size() for t in piece)
                taken = size if self.used + size <= memory else 0
                columns = tuple(_room((len(samples), *t.shape[1:]), t, in_file=not taken) for t in piece)
            for column, values in zip(columns, piece, strict=True):
                column[start : start + len(values)] = values
            start += len(piece[0])
        entries = self._entries

        def forget(ref: weakref.ref[Samples]) -> None:
            if key in entries and entries[key].samples is ref:
                del entries[key]

        return _Entry(weakref.ref(samples, forget), columns, taken)


KEPT = KeptFeatures()
"""Those of this process: runs one after another on the same clients, as in a comparison, find them."""


def _room(shape: tuple[int, ...], like: Tensor, *, in_file: bool) -> Tensor:
    """An empty tensor, in memory or in a file that nobody else sees and that goes with the tensor."""
    if not in_file or like.device.type != "cpu":
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    size = max(math.prod(shape) * like.element_size(), 1)
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        pages: Any = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(pages, dtype=like.dtype, count=math.prod(shape)).reshape(shape)
