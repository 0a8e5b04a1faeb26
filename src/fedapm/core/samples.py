"""Samples: inputs and targets as tensors in memory, so that a batch is an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.core.grouping import held_out_positions
from fedapm.errors import FedapmError


@dataclass(frozen=True)
class Samples:
    """Samples of a data set: ``network(*inputs)`` is compared with ``targets``."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    groups: Tensor | None = None
    """The recording each sample is a part of, as a number; a split never has one on both sides."""
    times: Tensor | None = None
    """When each sample was taken; a split holds out the latest."""

    def __post_init__(self) -> None:
        count = _rows(self.targets)
        for values in (*self.inputs, self.groups, self.times):
            if values is not None and _rows(values) != count:
                parts = (*self.inputs, self.targets, self.groups, self.times)
                sizes = sorted({_rows(t) for t in parts if t is not None})
                raise FedapmError(f"inputs and targets must have equal lengths, not {sizes}.")

    def __len__(self) -> int:
        return self.targets.shape[0]

    def __getitem__(self, index: Tensor | slice) -> Samples:
        inputs = tuple([_taken(t, index) for t in self.inputs])
        if self.groups is None and self.times is None:
            return Samples(inputs, _taken(self.targets, index))
        groups, times = (t if t is None else t[index] for t in (self.groups, self.times))
        return Samples(inputs, self.targets[index], groups, times)

    @property
    def belong_together(self) -> bool:
        """Whether a split has to keep samples together."""
        return self.groups is not None or self.times is not None

    def held_out(self, fraction: float, stream: np.random.Generator) -> np.ndarray[Any, Any]:
        """The positions to hold out of samples that belong together; see :func:`held_out_positions`."""
        groups, times = (None if t is None else t.cpu().numpy() for t in (self.groups, self.times))
        labels = self.targets.cpu().numpy() if self.classified and self.targets.dim() == 1 else None
        return held_out_positions(groups, times, labels, fraction, stream)

    @property
    def classified(self) -> bool:
        """Whether the targets are classes (integers) rather than floats."""
        return not (self.targets.is_floating_point() or self.targets.is_complex())

    def to(self, device: torch.device) -> Samples:
        """The same samples on a device."""
        groups, times = (t if t is None else t.to(device) for t in (self.groups, self.times))
        return Samples(tuple(t.to(device) for t in self.inputs), self.targets.to(device), groups, times)

    def rearrange(self, memory_format: torch.memory_format) -> None:
        """Keep pictures in another order in memory: the same numbers, and what was there before is let go."""
        inputs = (t.contiguous(memory_format=memory_format) if t.dim() == 4 else t for t in self.inputs)
        # nobody can see the difference but the clock
        object.__setattr__(self, "inputs", tuple(inputs))

    def batches(self, size: int) -> Iterator[Samples]:
        """The samples in order, in batches."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def shuffled(self, size: int, stream: torch.Generator) -> Iterator[Samples]:
        """One epoch of batches in random order.

        A single sample left over joins the batch before it, because batch normalization needs more than one.
        """
        order = torch.randperm(len(self), generator=stream).to(self.targets.device)
        whole = len(self) - 1 if size < len(self) and len(self) % size == 1 else len(self)
        for start in range(0, whole, size):
            end = start + size
            yield self[order[start : end if end < whole else len(self)]]


def _rows(values: Tensor) -> int:
    # len() of a tensor takes ten times as long
    return values.shape[0] if values.ndim else len(values)


def _taken(values: Tensor, index: Tensor | slice) -> Tensor:
    """``values[index]``, in a third of the time where whole samples lie in one piece of memory."""
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.dim() != 1 or index.device != values.device:
        return values[index]
    if values.is_contiguous():
        return values.index_select(0, index)
    if values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last):
        return values.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return values[index]


def batch_count(samples: int, size: int) -> int:
    """How many batches :meth:`Samples.shuffled` makes of so many samples; size 0 takes all of them at once."""
    if not size or size >= samples:
        return 1
    return len(range(0, samples - 1 if samples % size == 1 else samples, size))


def mean_batches(sizes: Sequence[int] | np.ndarray[Any, Any], size: int) -> float:
    """The mean over clients of the batches in an epoch.

    Args:
        sizes: Each client's number of training samples.
        size: The batch size.
    """
    values, counts = np.unique(np.asarray(sizes), return_counts=True)
    batches: int = sum(batch_count(int(n), size) * int(count) for n, count in zip(values, counts, strict=True))
    return batches / len(sizes)
