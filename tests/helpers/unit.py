"""Small data, small networks, and how a refusal must look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import settings
from torch import nn

from fedapm import FedapmError, Federation

T = TypeVar("T")

few = settings(max_examples=30, deadline=None, database=None, derandomize=True)
"""Enough examples to find what is wrong, the same ones every time."""


@contextmanager
def refused(*mentions: str) -> Iterator[None]:
    """The block must end in one line for a person that mentions all of these."""
    with pytest.raises(FedapmError) as caught:
        yield
    message = str(caught.value)
    assert message == message.strip()
    assert len(message.splitlines()) == 1
    for word in mentions:
        assert word in message, f"{word!r} is not in: {message}"


def unless_refused(make: Callable[[], T], *mentions: str) -> T | None:
    """What this makes, or None where it is refused in one line that mentions all of these."""
    try:
        return make()
    except FedapmError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    assert all(word in message for word in mentions), message
    return None


def blobs(count: int = 60, features: int = 4, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points around one centre a class, far enough apart to learn in a few steps."""
    stream = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = np.random.default_rng(99).normal(scale=3.0, size=(classes, features))
    return (centres[labels] + stream.normal(size=(count, features))).astype(np.float32), labels


def blob_clients(clients: int = 3, each: int = 20, **options: Any) -> Federation:
    """Clients called a, b, c, … with blobs of their own."""
    return Federation.from_clients(
        {"abcdefghijklmnop"[k]: blobs(each, seed=k) for k in range(clients)}, name="blobs", **options
    )


def two_layers(features: int = 4, width: int = 6, classes: int = 3) -> nn.Module:
    """A network whose part "body" is shared and whose part "head" is personal in these tests."""
    network = nn.Sequential()
    network.add_module("body", nn.Linear(features, width))
    network.add_module("relu", nn.ReLU())
    network.add_module("head", nn.Linear(width, classes))
    return network
