"""Partitioners: whose each sample is. Every sample goes to exactly one client, but for :class:`Overlapping`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedapm.errors import FedapmError

Index = np.ndarray[Any, Any]


class Partitioner(ABC):
    """A rule that deals samples out to clients, given their labels and a random stream."""

    clients: int

    def __call__(self, labels: Index, stream: np.random.Generator) -> list[Index]:
        """The samples of each client, as sorted positions."""
        if self.clients < 1:
            raise FedapmError(f"a partition needs at least one client, not {self.clients}.")
        if len(labels) < self.clients:
            raise FedapmError(f"{len(labels)} samples cannot be dealt out to {self.clients} clients.")
        return [np.sort(part) for part in self.deal(np.asarray(labels), stream)]

    @abstractmethod
    def deal(self, labels: Index, stream: np.random.Generator) -> list[Index]:
        """The samples of each client."""


@dataclass(frozen=True)
class IID(Partitioner):
    """Every client gets an equally large random part."""

    clients: int

    def deal(self, labels: Index, stream: np.random.Generator) -> list[Index]:
        """A shuffled pack dealt in equal piles."""
        return list(np.array_split(stream.permutation(len(labels)), self.clients))


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Label skew: each class is divided by proportions drawn from a Dirichlet distribution.

    A small ``concentration`` gives each client few classes, a large one approaches :class:`IID`. A draw that leaves
    a client with fewer than ``minimum`` samples is drawn again.
    """

    clients: int
    concentration: float = 0.5
    minimum: int = 10
    tries: int = 1000

    def deal(self, labels: Index, stream: np.random.Generator) -> list[Index]:
        """Cut every shuffled class at random proportions."""
        _one_class_each(labels)
        _check_dirichlet(self.clients, self.concentration, self.minimum, len(labels))
        for _ in range(self.tries):
            parts: list[list[Index]] = [[] for _ in range(self.clients)]
            for value in np.unique(labels):
                member = stream.permutation(np.flatnonzero(labels == value))
                shares = stream.dirichlet(np.full(self.clients, self.concentration))
                cuts = np.round(np.cumsum(shares)[:-1] * len(member)).astype(int)
                for part, piece in zip(parts, np.split(member, cuts), strict=True):
                    part.append(piece)
            dealt = [np.concatenate(part) for part in parts]
            if min(map(len, dealt)) >= self.minimum:
                return dealt
        raise FedapmError(
            f"no Dirichlet({self.concentration}) draw in {self.tries} gave each of {self.clients} clients "
            f"{self.minimum} samples; use a larger concentration, fewer clients or a smaller minimum."
        )


@dataclass(frozen=True)
class Shards(Partitioner):
    """Label skew: samples sorted by class, cut into equal shards, a few shards a client (McMahan et al. 2017)."""

    clients: int
    shards: int = 2

    def deal(self, labels: Index, stream: np.random.Generator) -> list[Index]:
        """Deal shards of the sorted samples."""
        _one_class_each(labels)
        if self.shards < 1:
            raise FedapmError(f"a client needs at least one shard, not {self.shards}.")
        count = self.clients * self.shards
        if count > len(labels):
            raise FedapmError(f"{len(labels)} samples cannot be cut into {count} shards; use fewer shards a client.")
        order = stream.permutation(len(labels))
        pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], count)
        hands = stream.permutation(count).reshape(self.clients, self.shards)
        return [np.concatenate([pieces[k] for k in hand]) for hand in hands]


@dataclass(frozen=True)
class Quantity(Partitioner):
    """Quantity skew: clients of very different sizes and alike in their classes.

    Sizes are proportions drawn from a Dirichlet distribution: a small ``concentration`` gives a few clients most of
    the samples. Every client gets ``minimum`` samples first.
    """

    clients: int
    concentration: float = 0.5
    minimum: int = 10

    def deal(self, labels: Index, stream: np.random.Generator) -> list[Index]:
        """Cut the shuffled pack at random proportions."""
        _check_dirichlet(self.clients, self.concentration, self.minimum, len(labels))
        spare = len(labels) - self.minimum * self.clients
        ends = np.round(np.cumsum(stream.dirichlet(np.full(self.clients, self.concentration))) * spare).astype(int)
        cuts = ends[:-1] + self.minimum * np.arange(1, self.clients)
        return list(np.split(stream.permutation(len(labels)), cuts))


@dataclass(frozen=True)
class Overlapping(Partitioner):
    """No partition: every client draws as many samples as all others, from one pool, whatever the others drew.

    A client's mixture of classes is drawn from a Dirichlet distribution. One client's test sample may be another's
    training sample, which flatters every method that shares anything. It is here to compare with published curves that
    were measured so.
    """

    clients: int
    concentration: float = 0.5

    def deal(self, labels: Index, stream: np.random.Generator) -> list[Index]:
        """Every client's draw without replacement, each sample as likely as the client's share of its class."""
        _one_class_each(labels)
        _check_dirichlet(self.clients, self.concentration, 0, len(labels))
        _, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        return [self._draw(len(labels) // self.clients, which, sizes, stream) for _ in range(self.clients)]

    def _draw(self, count: int, which: Index, sizes: Index, stream: np.random.Generator) -> Index:
        shares = stream.dirichlet(np.full(len(sizes), self.concentration))
        # the largest of log-weights with Gumbel noise are a weighted draw without replacement, and a class of
        # (nearly) no share is reached only when all others are used up
        weights = np.log(np.maximum(shares, 1e-300) / sizes)
        order = np.argsort(-(weights[which] + stream.gumbel(size=len(which))), kind="stable")
        return order[:count]


@dataclass(frozen=True)
class Natural:
    """Every sample stays with whose it is by nature: one client for each person, speaker or device.

    Owners with fewer than ``minimum`` samples are left out. With ``clients`` only so many are taken, those whose ids
    come first.
    """

    clients: int | None = None
    minimum: int = 10

    def __call__(self, owners: Sequence[Any] | Index | None) -> dict[str, Index]:
        """The samples of each client, as sorted positions."""
        if owners is None:
            raise FedapmError("the samples of this data set are nobody's by nature; choose another data.partition.")
        enough = {owner: part for owner, part in by_id(owners).items() if len(part) >= self.minimum}
        if not enough:
            raise FedapmError(f"nobody has {self.minimum} samples; use a smaller data.minimum.")
        if self.clients is not None and not 1 <= self.clients <= len(enough):
            raise FedapmError(f"{self.clients} clients were asked for, but there are {len(enough)} by nature.")
        return dict(list(enough.items())[: self.clients])


Rule = Partitioner | Natural
"""How samples come to clients."""


def _check_dirichlet(clients: int, concentration: float, minimum: int, samples: int) -> None:
    if not 0 < concentration < float("inf"):
        raise FedapmError(f"the concentration must be positive, not {concentration}.")
    if minimum < 0:
        raise FedapmError(f"the fewest samples of a client cannot be {minimum}.")
    if minimum * clients > samples:
        raise FedapmError(
            f"{clients} clients with at least {minimum} samples each need {minimum * clients} samples, but there are "
            f"{samples}."
        )


def _one_class_each(labels: Index) -> None:
    if labels.ndim != 1:
        raise FedapmError("a partition by label skew needs one class a sample; use IID for other targets.")


def by_id(ids: Sequence[Any] | Index) -> dict[str, Index]:
    """The samples of each client, given a column that names each sample's client."""
    column = np.asarray(ids)
    if column.ndim != 1:
        raise FedapmError(f"the column of client ids must have one dimension, not {column.ndim}.")
    try:
        values, inverse = np.unique(column, return_inverse=True)
    except TypeError:
        raise FedapmError("the column of client ids mixes kinds or has gaps (None); give every sample an id.") from None
    return {str(value): np.flatnonzero(inverse == k) for k, value in enumerate(values)}
