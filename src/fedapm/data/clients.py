"""One client's data, and how it is made of arrays: which samples it has, and which of them are for testing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.core.random import numpy_generator
from fedapm.core.samples import Samples
from fedapm.data.arrays import LabelCode, as_samples
from fedapm.data.splitting import split_samples, split_test, split_together
from fedapm.errors import FedapmError, did_you_mean


@dataclass(frozen=True)
class ClientData:
    """The data of one client."""

    id: str
    train: Samples
    test: Samples

    @property
    def classes(self) -> int:
        """The number of classes in the training data; 0 for regression."""
        return len(set(self.train.targets.tolist())) if self.train.classified else 0

    @property
    def nbytes(self) -> int:
        """What its samples take in memory."""
        parts = [(*p.inputs, p.targets, p.groups, p.times) for p in (self.train, self.test)]
        return sum(t.numel() * t.element_size() for part in parts for t in part if t is not None)


def check_client(client: ClientData) -> None:
    """Refuse a client without training data, and one with negative classes or numbers that are not finite."""
    if len(client.train) == 0:
        raise FedapmError(f"client {client.id} has no training data; leave it out or give it some.")
    if client.train.classified and int(client.train.targets.min()) < 0:
        lowest = int(client.train.targets.min())
        raise FedapmError(f"client {client.id} has the class {lowest}; classes are numbered from 0, as in y - y.min().")
    for part, samples in (("training", client.train), ("test", client.test)):
        for values in (*samples.inputs, samples.targets):
            if values.is_floating_point() and not _all_finite(values):
                raise FedapmError(f"client {client.id}: its {part} data holds NaN or infinite values.")


def _all_finite(values: Tensor) -> bool:
    # a finite sum has finite terms and is much faster to check; a sum of large finite terms may still overflow
    return math.isfinite(values.sum(dtype=torch.float32).item()) or bool(torch.isfinite(values).all())


def client_position(ids: Sequence[str], client: int | str) -> int:
    """Where a client stands among these, given its id (or its position as a number)."""
    if str(client) in ids:
        return ids.index(str(client))
    if isinstance(client, int) and 0 <= client < len(ids):
        return client
    raise FedapmError(f"there is no client {client!r}; the ids are {', '.join(ids[:8])}{', …' * (len(ids) > 8)}.")


def divided(
    samples: Samples,
    parts: Mapping[str, np.ndarray[Any, Any]],
    test_fraction: float,
    seed: int,
    test: np.ndarray[Any, Any] | None,
) -> list[ClientData]:
    """The clients that have these positions of all samples each; test samples are marked, or split off."""
    labels = samples.targets.numpy()
    clients = []
    for position, (client, index) in enumerate(parts.items()):
        if test is not None:
            train, held_out = index[~test[index]], index[test[index]]
            clients.append(ClientData(client, samples[torch.as_tensor(train)], samples[torch.as_tensor(held_out)]))
            continue
        check_enough(client, len(index))
        stream = numpy_generator(seed, "test split", position)
        if samples.belong_together:
            clients.append(ClientData(client, *split(client, samples[torch.as_tensor(index)], test_fraction, stream)))
            continue
        train, held_out = split_test(index, labels, samples.classified, test_fraction, stream)
        clients.append(ClientData(client, samples[torch.as_tensor(train)], samples[torch.as_tensor(held_out)]))
    return clients


def by_name(clients: Mapping[Any, Any] | Sequence[Any]) -> dict[str, Any]:
    """Clients by id, which is their place in a list where there is no other."""
    items = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    named: dict[str, Any] = {}
    for key, value in items:
        if key is None or bool(key != key):
            raise FedapmError(f"{key} is no id of a client; give each its own name or number.")
        if str(key) in named:
            raise FedapmError(f"two clients are called {str(key)!r}; give each its own id.")
        named[str(key)] = value
    return named


def columns_of(data: Any, client: str) -> dict[str, Any]:
    """A client's arrays by name, whether they are given as a pair or a dictionary."""
    if isinstance(data, Mapping):
        known = ("x", "y", "groups", "time")
        for key in data:
            if key not in known:
                raise FedapmError(f"client {client}: unknown array {key!r}; {did_you_mean(str(key), known)}")
        if missing := [key for key in ("x", "y") if key not in data]:
            raise FedapmError(f"client {client} lacks the array {missing[0]!r}; it has {', '.join(map(str, data))}.")
        return dict(data)
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return {"x": data[0], "y": data[1]}
    raise FedapmError(f"the data of client {client} should be a pair (x, y) of arrays, not {type(data).__name__}.")


def samples_of(data: Any, client: str, code: LabelCode | None) -> Samples:
    """The samples of one client, given as a pair or a dictionary of arrays."""
    columns = columns_of(data, client)
    try:
        return as_samples(columns["x"], columns["y"], code, columns.get("groups"), columns.get("time"))
    except FedapmError as error:
        raise FedapmError(f"client {client}: {error}") from None


def split(client: str, samples: Samples, fraction: float, stream: np.random.Generator) -> tuple[Samples, Samples]:
    """A client's samples for training and for testing; a client that cannot be split is named."""
    try:
        return split_samples(samples, fraction, stream)
    except FedapmError as error:
        if not samples.belong_together:
            raise
        reason = str(error).rstrip(".")
        raise FedapmError(f"client {client}: {reason}; give it more, or leave it out.") from None


def split_each(
    clients: Sequence[str], samples: Sequence[Samples], fraction: float, streams: Sequence[np.random.Generator]
) -> list[tuple[Samples, Samples]]:
    """Several clients' samples for training and for testing; a client that cannot be split is named."""
    if any(own.belong_together for own in samples):
        return [split(*each) for each in zip(clients, samples, [fraction] * len(samples), streams, strict=True)]
    return split_together(samples, fraction, streams)


def check_enough(client: str, count: int) -> None:
    """Refuse a client with too few samples to train and test."""
    if count < 2:
        raise FedapmError(
            f"client {client} has {count} sample(s), too few to train and test; leave it out or use fewer clients."
        )


def test_flags(test: Any, count: int) -> np.ndarray[Any, Any]:
    """Which samples are for testing, as true and false."""
    flags = np.asarray(test)
    if flags.shape != (count,) or not np.isin(flags, (0, 1)).all():
        raise FedapmError(f"test says for each of the {count} samples whether it is for testing: true or false.")
    return flags.astype(bool)


def same_kind(test: Samples, train: Samples, client: str) -> Samples:
    """The test samples of a client, whose targets are of the same kind as those it trains on."""
    if test.classified == train.classified:
        return test
    if len(test) == 0:
        return replace(test, targets=test.targets.to(train.targets.dtype))
    raise FedapmError(f"client {client}: of training and test targets one has classes (integers), the other floats.")
