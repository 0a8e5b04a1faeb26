"""Partition rules: which client gets which sample.

Every sample goes to at most one client, except with :class:`Overlapping`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedapm.errors import FedapmError

Array = np.ndarray[Any, Any]


class Partitioner(ABC):
    """A rule that assigns samples to clients, given their labels and a random generator."""

    clients: int

    def __call__(self, labels: Array, stream: np.random.Generator) -> list[Array]:
        """Partition samples.

        Args:
            labels: The class of each sample.
            stream: The source of randomness.

        Returns:
            The sorted positions of each client's samples.

        Raises:
            FedapmError: There are too few samples, or a parameter of the rule is out of range.
        """
        if self.clients < 1:
            raise FedapmError(f"a partition needs at least one client, not {self.clients}.")
        if len(labels) < self.clients:
            raise FedapmError(f"{len(labels)} samples cannot be divided among {self.clients} clients.")
        return [np.sort(part) for part in self.assign(np.asarray(labels), stream)]

    @abstractmethod
    def assign(self, labels: Array, stream: np.random.Generator) -> list[Array]:
        """The positions of each client's samples, in any order."""


@dataclass(frozen=True)
class IID(Partitioner):
    """Every client gets an equally large random part.

    Args:
        clients: The number of clients.
    """

    clients: int

    def assign(self, labels: Array, stream: np.random.Generator) -> list[Array]:
        """Cut the shuffled samples into equal parts."""
        return list(np.array_split(stream.permutation(len(labels)), self.clients))


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Label skew: each class is divided by proportions drawn from a Dirichlet distribution.

    Args:
        clients: The number of clients.
        concentration: Small values give each client few classes, large ones approach :class:`IID`.
        minimum: A draw that leaves a client with fewer samples is rejected.
        tries: The number of draws before giving up.
    """

    clients: int
    concentration: float = 0.5
    minimum: int = 10
    tries: int = 1000

    def assign(self, labels: Array, stream: np.random.Generator) -> list[Array]:
        """Cut every shuffled class in random proportions."""
        _check_one_class(labels)
        _check_dirichlet(self.clients, self.concentration, self.minimum, len(labels))
        for _ in range(self.tries):
            parts: list[list[Array]] = [[] for _ in range(self.clients)]
            for value in np.unique(labels):
                members = stream.permutation(np.flatnonzero(labels == value))
                shares = stream.dirichlet(np.full(self.clients, self.concentration))
                cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
                for part, piece in zip(parts, np.split(members, cuts), strict=True):
                    part.append(piece)
            partition = [np.concatenate(part) for part in parts]
            if min(map(len, partition)) >= self.minimum:
                return partition
        raise FedapmError(
            f"no Dirichlet({self.concentration}) draw in {self.tries} gave each of {self.clients} clients "
            f"{self.minimum} samples; use a larger concentration, fewer clients or a smaller minimum."
        )


@dataclass(frozen=True)
class Shards(Partitioner):
    """Label skew: samples sorted by class and cut into equal shards, a few per client (McMahan et al. 2017).

    Args:
        clients: The number of clients.
        shards: The number of shards per client.
    """

    clients: int
    shards: int = 2

    def assign(self, labels: Array, stream: np.random.Generator) -> list[Array]:
        """Give each client random shards of the sorted samples."""
        _check_one_class(labels)
        if self.shards < 1:
            raise FedapmError(f"a client needs at least one shard, not {self.shards}.")
        count = self.clients * self.shards
        if count > len(labels):
            raise FedapmError(f"{len(labels)} samples cannot be cut into {count} shards; use fewer shards per client.")
        order = stream.permutation(len(labels))
        pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], count)
        shards_of = stream.permutation(count).reshape(self.clients, self.shards)
        return [np.concatenate([pieces[k] for k in shards]) for shards in shards_of]


@dataclass(frozen=True)
class Quantity(Partitioner):
    """Quantity skew: clients differ in their number of samples, but not in their mixture of classes.

    The sizes are proportions drawn from a Dirichlet distribution.

    Args:
        clients: The number of clients.
        concentration: Small values give a few clients most of the samples.
        minimum: The number of samples every client gets before the others are divided.
    """

    clients: int
    concentration: float = 0.5
    minimum: int = 10

    def assign(self, labels: Array, stream: np.random.Generator) -> list[Array]:
        """Cut the shuffled samples in random proportions."""
        _check_dirichlet(self.clients, self.concentration, self.minimum, len(labels))
        spare = len(labels) - self.minimum * self.clients
        ends = np.round(np.cumsum(stream.dirichlet(np.full(self.clients, self.concentration))) * spare).astype(int)
        cuts = ends[:-1] + self.minimum * np.arange(1, self.clients)
        return list(np.split(stream.permutation(len(labels)), cuts))


@dataclass(frozen=True)
class Overlapping(Partitioner):
    """No partition: every client draws equally many samples from the whole pool, independently of the others.

    A client's mixture of classes is drawn from a Dirichlet distribution. One client's test sample may be another's
    training sample, which inflates the scores of every method that shares parameters. Use it only to compare with
    published results that were measured in this way.

    Args:
        clients: The number of clients.
        concentration: Small values give each client few classes.
    """

    clients: int
    concentration: float = 0.5

    def assign(self, labels: Array, stream: np.random.Generator) -> list[Array]:
        """Draw without replacement, each sample with the client's probability of its class."""
        _check_one_class(labels)
        _check_dirichlet(self.clients, self.concentration, 0, len(labels))
        _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        return [self._draw(len(labels) // self.clients, class_of, sizes, stream) for _ in range(self.clients)]

    def _draw(self, count: int, class_of: Array, sizes: Array, stream: np.random.Generator) -> Array:
        shares = stream.dirichlet(np.full(len(sizes), self.concentration))
        # the largest log-weights plus Gumbel noise are a weighted draw without replacement; a class with a share of
        # (nearly) 0 is used only when all others are used up
        weights = np.log(np.maximum(shares, 1e-300) / sizes)
        order = np.argsort(-(weights[class_of] + stream.gumbel(size=len(class_of))), kind="stable")
        return order[:count]


@dataclass(frozen=True)
class Natural:
    """Assigns each sample to its owner: one client for each person, speaker or device.

    Args:
        clients: The number of clients, those whose ids sort first; all if None.
        minimum: Owners with fewer samples are left out.
    """

    clients: int | None = None
    minimum: int = 10

    def __call__(self, owners: Sequence[Any] | Array | None) -> dict[str, Array]:
        """Partition samples.

        Args:
            owners: The owner of each sample; None if samples have no owner.

        Returns:
            The sorted positions of each client's samples, by the client's id.
        """
        if owners is None:
            raise FedapmError("the samples of this data set have no owner; choose another data.partition.")
        enough = {owner: part for owner, part in by_id(owners).items() if len(part) >= self.minimum}
        if not enough:
            raise FedapmError(f"no owner has {self.minimum} samples; use a smaller data.minimum.")
        if self.clients is not None and not 1 <= self.clients <= len(enough):
            raise FedapmError(
                f"{self.clients} clients were requested, but {len(enough)} owners have {self.minimum} samples; change "
                "data.clients or data.minimum."
            )
        return dict(list(enough.items())[: self.clients])


PartitionRule = Partitioner | Natural
"""How samples are assigned to clients."""


def _check_dirichlet(clients: int, concentration: float, minimum: int, samples: int) -> None:
    if not 0 < concentration < float("inf"):
        raise FedapmError(f"the concentration must be positive, not {concentration}.")
    if minimum < 0:
        raise FedapmError(f"the minimum number of samples per client cannot be {minimum}.")
    if minimum * clients > samples:
        raise FedapmError(
            f"{clients} clients with at least {minimum} samples each need {minimum * clients} samples, but there are "
            f"{samples}."
        )


def _check_one_class(labels: Array) -> None:
    if labels.ndim != 1:
        raise FedapmError("a partition by label skew needs one class per sample; use IID for other targets.")


def by_id(ids: Sequence[Any] | Array) -> dict[str, Array]:
    """Partition samples by a column with the client id of each sample.

    Args:
        ids: The id of each sample's client, all of one kind.

    Returns:
        The sorted positions of each client's samples, by id.
    """
    column = np.asarray(ids)
    if column.ndim != 1:
        raise FedapmError(f"the client ids must have one dimension, not {column.ndim}.")
    if column.dtype.kind == "f" and np.isnan(column).any():
        raise FedapmError(f"{int(np.isnan(column).sum())} client ids are missing (NaN); give every sample an id.")
    try:
        values, inverse = np.unique(column, return_inverse=True)
    except TypeError:
        raise FedapmError("the client ids mix types or have gaps (None); give every sample an id.") from None
    is_gap = {"f": np.isnan, "c": np.isnan, "m": np.isnat, "M": np.isnat}.get(column.dtype.kind)
    if is_gap is not None and bool(is_gap(column).any()):
        raise FedapmError("some client ids are not a number or not a time (NaN); give every sample an id.")
    return {str(value): np.flatnonzero(inverse == k) for k, value in enumerate(values)}
