"""Stacked: the samples of several clients side by side, and the batches that each of them would see by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedapm.core.batched import Rows
from fedapm.simulation.batched.streams import Streams


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
    """Samples of some clients, which are read where they lie."""

    columns: tuple[Tensor, ...]
    """Each input, and the targets: (places, samples, …)."""
    sizes: tuple[int, ...]
    """How many samples each client has; the rest of its row is padding."""
    places: Tensor | None = None
    """Where each client is; None where there is nobody else, and they are in order."""

    @classmethod
    def of(cls, inputs: Sequence[tuple[Tensor, ...]], targets: list[Tensor]) -> Stacked:
        """From each client's inputs and targets."""
        sizes = tuple([t.shape[0] for t in targets])
        return cls(tuple([_filled_up([*column], sizes) for column in (*zip(*inputs, strict=True), targets)]), sizes)

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """(clients, samples, …), each in one piece of memory."""
        return tuple([self._own(values) for values in self.columns[:-1]])

    @cached_property
    def targets(self) -> Tensor:
        """(clients, samples, …) in one piece of memory."""
        return self._own(self.columns[-1])

    def _own(self, values: Tensor) -> Tensor:
        return values if self.places is None else values.index_select(0, self.places)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def even(self) -> bool:
        """Whether all clients have the same number of samples."""
        return self.sizes.count(self.sizes[0]) == len(self.sizes)

    def rows(self, index: Tensor) -> Stacked:
        """Some of the clients, with no more padding than they need."""
        sizes = tuple(self.sizes[k] for k in index.tolist())
        width = max(sizes)
        return Stacked(tuple(values[index, :width] for values in (*self.inputs, self.targets)), sizes)

    def whole(self) -> Batch:
        """All samples as one batch."""
        return Batch(slice(0, len(self)), self.inputs, self.targets, self.sizes)

    def taken(self, samples: Sequence[Tensor]) -> Stacked:
        """Some samples of each client, in the order of their positions."""
        sizes = tuple([chosen.shape[0] for chosen in samples])
        order = _filled_up([*samples], sizes).to(self.targets.device)
        return Stacked(tuple(_arranged(values, order) for values in (*self.inputs, self.targets)), sizes)

    def epoch(self, size: int, streams: Streams, ordered: bool) -> Iterator[Batch]:
        """One pass in random order; who has no more batches is left out of those that follow.

        Args:
            size: Samples in a batch; 0 takes all of them.
            streams: Draws each client's order.
            ordered: Whether the order matters even within a single batch.
        """
        orders = streams.orders(self.sizes)
        of_size = {n: batch_bounds(n, size) for n in {*self.sizes}}
        bounds = [of_size[n] for n in self.sizes]
        steps = max(map(len, bounds))
        if steps == 1 and not ordered:
            yield self.whole()
            return
        if self.even:
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
        count, samples = order.shape
        # what has been brought together already is nearer than what lies among the samples of all clients
        together = self.places is None or "inputs" in self.__dict__
        columns = (*self.inputs, self.targets) if together else self.columns
        places = _places(order.to(columns[-1].device), columns[-1].shape[1], None if together else self.places)
        first, last = bounds[0]
        if samples == (last - first) * len(bounds):
            index = places.view(count, len(bounds), last - first).transpose(0, 1).flatten()
        else:
            index = torch.cat([places[:, first:last].flatten() for first, last in bounds])
        lengths = [count * (last - first) for first, last in bounds]
        *samples_of_all, targets = [values.flatten(0, 1) for values in columns]
        whole = targets.index_select(0, index).split_with_sizes(lengths)
        everybody = slice(0, count)
        for (first, last), part, y in zip(bounds, index.split_with_sizes(lengths), whole, strict=True):
            # no more inputs than a batch's at a time, which stay in the processor's cache
            batch = [values.index_select(0, part) for values in samples_of_all]
            *inputs, y = [values.view(count, last - first, *values.shape[1:]) for values in (*batch, y)]
            yield Batch(everybody, tuple(inputs), y, (last - first,) * count)


def positions(rows: Rows, count: int, device: torch.device) -> Tensor:
    """Rows as positions."""
    return torch.arange(count, device=device) + (rows.start or 0) if isinstance(rows, slice) else rows


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Several clients' rows in one tensor; shorter ones are filled up with zeros."""
    return _filled_up([*parts], [part.shape[0] for part in parts])


def _filled_up(parts: list[Tensor], sizes: Sequence[int]) -> Tensor:
    return torch.stack(parts) if sizes.count(sizes[0]) == len(sizes) else pad_sequence(parts, batch_first=True)


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


def _places(order: Tensor, samples: int, clients: Tensor | None = None) -> Tensor:
    """Positions within each client's samples as positions within all of them, padding included."""
    clients = torch.arange(order.shape[0], device=order.device) if clients is None else clients
    return order + samples * clients.unsqueeze(1)
