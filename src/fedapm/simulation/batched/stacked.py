"""Stacked: the samples of several clients side by side, and the batches that each of them would see by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedapm.core.batched import Rows


@dataclass(frozen=True)
class Batch:
    """One batch of each of some clients, side by side; shorter ones are filled up with samples that do not count."""

    rows: Rows
    """Whose batches these are."""
    inputs: tuple[Tensor, ...]
    targets: Tensor
    sizes: tuple[int, ...]

    @cached_property
    def even(self) -> bool:
        """Whether all batches have the same size."""
        return self.sizes.count(self.sizes[0]) == len(self.sizes)

    @cached_property
    def weights(self) -> Tensor | None:
        """(clients, samples); every client's weights sum to one. None where all samples weigh the same."""
        if self.even:
            return None
        length = torch.tensor(self.sizes, device=self.targets.device, dtype=torch.float64).unsqueeze(1)
        return (torch.arange(self.targets.shape[1], device=length.device) < length) / length

    def parts(self) -> list[tuple[Tensor, Batch]]:
        """Batches of one size each, and which of these clients each of them is of."""
        found = []
        for size in sorted(set(self.sizes)):
            index = torch.tensor([k for k, own in enumerate(self.sizes) if own == size], device=self.targets.device)
            rows = positions(self.rows, len(self.sizes), self.targets.device)[index]
            inputs = tuple(values[index, :size] for values in self.inputs)
            found.append((index, Batch(rows, inputs, self.targets[index, :size], (size,) * len(index))))
        return found


@dataclass(frozen=True)
class Stacked:
    """Samples (clients, samples, …)."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    sizes: tuple[int, ...]
    """How many samples each client has; the rest of its row is padding."""

    @classmethod
    def of(cls, inputs: Sequence[tuple[Tensor, ...]], targets: Sequence[Tensor]) -> Stacked:
        """From each client's inputs and targets."""
        columns = tuple(side_by_side(list(column)) for column in zip(*inputs, strict=True))
        return cls(columns, side_by_side(list(targets)), tuple(t.shape[0] for t in targets))

    def __len__(self) -> int:
        return len(self.sizes)

    def rows(self, index: Tensor) -> Stacked:
        """Some of the clients, with no more padding than they need."""
        sizes = tuple(self.sizes[k] for k in index.tolist())
        width = max(sizes)
        return Stacked(tuple(values[index, :width] for values in self.inputs), self.targets[index, :width], sizes)

    def whole(self) -> Batch:
        """All samples as one batch."""
        return Batch(slice(0, len(self)), self.inputs, self.targets, self.sizes)

    def taken(self, samples: Sequence[Tensor]) -> Stacked:
        """Some samples of each client, in the order of their positions."""
        order = side_by_side(list(samples)).to(self.targets.device)
        inputs = tuple(_arranged(values, order) for values in self.inputs)
        return Stacked(inputs, _arranged(self.targets, order), tuple(chosen.shape[0] for chosen in samples))

    def epoch(self, size: int, streams: Sequence[torch.Generator], ordered: bool) -> Iterator[Batch]:
        """One pass in random order; who has no more batches is left out of those that follow.

        Args:
            size: Samples in a batch; 0 takes all of them.
            streams: Draws each client's order.
            ordered: Whether the order matters even within a single batch.
        """
        orders = [torch.randperm(n, generator=stream) for n, stream in zip(self.sizes, streams, strict=True)]
        of_size = {n: batch_bounds(n, size) for n in {*self.sizes}}
        bounds = [of_size[n] for n in self.sizes]
        steps = max(map(len, bounds))
        if steps == 1 and not ordered:
            yield self.whole()
            return
        if self.sizes.count(self.sizes[0]) == len(self):
            yield from self._even_batches(torch.stack(orders), bounds[0])
            return
        mixed = self.taken(orders)
        for step in range(steps):
            places = [k for k, own in enumerate(bounds) if len(own) > step]
            active = [bounds[k][step] for k in places]
            first, last = active[0][0], max(end for _, end in active)
            sizes = tuple(end - begin for begin, end in active)
            rows = _compact(places, self.targets.device)
            inputs = tuple(values[rows, first:last] for values in mixed.inputs)
            yield Batch(rows, inputs, mixed.targets[rows, first:last], sizes)

    def _even_batches(self, order: Tensor, bounds: Sequence[tuple[int, int]]) -> Iterator[Batch]:
        """The batches of clients that have equally many, each in one piece of memory."""
        places = _places(order.to(self.targets.device), self.targets.shape[1])
        index = torch.cat([places[:, first:last].flatten() for first, last in bounds])
        lengths = [len(self) * (last - first) for first, last in bounds]
        columns = [
            torch.split(values.flatten(0, 1).index_select(0, index), lengths) for values in (*self.inputs, self.targets)
        ]
        everybody = slice(0, len(self))
        for (first, last), *parts in zip(bounds, *columns, strict=True):
            *inputs, targets = (part.view(len(self), last - first, *part.shape[1:]) for part in parts)
            yield Batch(everybody, tuple(inputs), targets, (last - first,) * len(self))


def positions(rows: Rows, count: int, device: torch.device) -> Tensor:
    """Rows as positions."""
    return torch.arange(count, device=device) + (rows.start or 0) if isinstance(rows, slice) else rows


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Several clients' rows in one tensor; shorter ones are filled up with zeros."""
    if len({p.shape[0] for p in parts}) == 1:
        return torch.stack(list(parts))
    return pad_sequence(list(parts), batch_first=True)


@cache
def batch_bounds(samples: int, size: int) -> tuple[tuple[int, int], ...]:
    """Where each batch of an epoch begins and ends; a single sample left over joins the batch before it."""
    if not size or size >= samples:
        return ((0, samples),)
    starts = range(0, samples - 1 if samples % size == 1 else samples, size)
    return tuple(zip(starts, [*starts[1:], samples], strict=True))


def _compact(places: list[int], device: torch.device) -> Rows:
    """Positions as a range where they are one."""
    first, last = places[0], places[-1]
    return slice(first, last + 1) if last - first + 1 == len(places) else torch.tensor(places, device=device)


def _arranged(values: Tensor, order: Tensor) -> Tensor:
    """Every client's samples in the order given for it."""
    places = _places(order, values.shape[1]).flatten()
    return values.flatten(0, 1).index_select(0, places).view(*order.shape, *values.shape[2:])


def _places(order: Tensor, samples: int) -> Tensor:
    """Positions within each client's samples as positions within all of them, padding included."""
    return order + samples * torch.arange(order.shape[0], device=order.device).unsqueeze(1)
