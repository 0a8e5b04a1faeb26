"""Samples: inputs and targets as tensors in memory, so that a batch is an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapm.errors import FedapmError


@dataclass(frozen=True)
class Samples:
    """Samples of a data set: ``network(*inputs)`` is compared with ``targets``."""

    inputs: tuple[Tensor, ...]
    targets: Tensor

    def __post_init__(self) -> None:
        sizes = {len(t) for t in (*self.inputs, self.targets)}
        if len(sizes) != 1:
            raise FedapmError(f"inputs and targets must have equal lengths, not {sorted(sizes)}.")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Tensor | slice) -> Samples:
        return Samples(tuple(t[index] for t in self.inputs), self.targets[index])

    @property
    def classified(self) -> bool:
        """Whether the targets are classes (integers) rather than floats."""
        return not (self.targets.is_floating_point() or self.targets.is_complex())

    def to(self, device: torch.device) -> Samples:
        """The same samples on a device."""
        return Samples(tuple(t.to(device) for t in self.inputs), self.targets.to(device))

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


def batch_count(samples: int, size: int) -> int:
    """How many batches :meth:`Samples.shuffled` makes of so many samples; size 0 takes all of them at once."""
    if not size or size >= samples:
        return 1
    return len(range(0, samples - 1 if samples % size == 1 else samples, size))


def mean_batches(sizes: Sequence[int], size: int) -> float:
    """The mean over clients of the batches in an epoch.

    Args:
        sizes: Each client's number of training samples.
        size: The batch size.
    """
    return sum(batch_count(samples, size) for samples in sizes) / len(sizes)
