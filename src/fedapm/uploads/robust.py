"""Robust: the server counts less of messages that are far from the others, so that a few bad clients cannot ruin it.

    c_1, …, c_s = R(m_1, …, m_s)        what is counted of each message
    ū ← ū + (1/m) Σ c_i                 the mean of the c_i is the robust mean of the m_i
    z̃_i ← z̃_i + c_i                     the client is told, and keeps what was counted

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018
(trimmed mean). Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on Signal
Processing, 2022 (geometric median by Weiszfeld's algorithm).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedapm.core.algorithm import NUMBERS, Aggregate, Algorithm, State, Upload
from fedapm.core.vec import Vec
from fedapm.uploads.layer import Layer

ITERATIONS, CLOSE = 100, 1e-9
"""Steps of Weiszfeld's algorithm at most, and how short its last is, relative to the usual distance."""


class Rule(Protocol):
    """A robust mean that says what it counts of each message."""

    def counted(self, messages: Tensor) -> Tensor:
        """What is counted of each message; the mean of it is the robust mean.

        Args:
            messages: A row for each client, in double precision.
        """


@dataclass(frozen=True)
class TrimmedMean:
    """In each coordinate the largest and the smallest numbers are left out: the mean of the others stands for them."""

    trim: float
    """Which share is left out at either end."""

    def counted(self, messages: Tensor) -> Tensor:
        """The messages, with the mean in place of what is left out."""
        count = len(messages)
        out = min(math.ceil(self.trim * count), (count - 1) // 2)
        ordered, order = messages.sort(dim=0, stable=True)
        middle = ordered[out : count - out].mean(0)
        ordered[:out] = middle
        ordered[count - out :] = middle
        return torch.empty_like(messages).scatter_(0, order, ordered)


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the smallest sum of distances to all messages. It is the mean of them when each is moved to the
    median distance from it, which is what is counted.
    """

    def counted(self, messages: Tensor) -> Tensor:
        """The messages, each in its direction from the geometric median and as far from it as is usual."""
        middle = messages.median(0).values
        distances = _distances(messages, middle)
        usual = float(distances.median())
        tiny = max(CLOSE * usual, torch.finfo(messages.dtype).tiny)
        for _ in range(ITERATIONS):
            weights = 1 / distances.clamp(min=tiny)
            before, middle = middle, (weights / weights.sum()) @ messages
            distances = _distances(messages, middle)
            if float((middle - before).norm()) <= CLOSE * usual:
                break
        usual = float(distances.median())
        return middle + (messages - middle) * (usual / distances.clamp(min=tiny)).unsqueeze(1)


@dataclass(frozen=True)
class Robust(Layer):
    """A method whose server takes a robust mean of the messages of a round."""

    rule: Rule

    @property
    def screens(self) -> bool:
        """Single messages are compared with each other."""
        return True

    def counted(self, server: State, uploads: Sequence[Upload]) -> list[Upload | None]:
        """What the rule counts of each message that an inner layer does not refuse."""
        passed = self.method.counted(server, uploads)
        left = [upload for upload in passed if upload is not None]
        if len(left) < 2:
            return passed
        name = vector_of(left[0])
        rows = torch.stack([_flat(upload.sums[name]) for upload in left])
        made = iter(self.rule.counted(rows))
        return [None if u is None else with_vector(u, name, _like(next(made), u.sums[name])) for u in passed]


@dataclass(frozen=True)
class Screening:
    """What the server counts of a round."""

    kept: list[int]
    """The positions of the uploads that count at all."""
    counted: list[Upload]
    """What counts of each of these."""
    corrections: list[dict[str, Vec]]
    """For each of these what was counted minus what was sent, of sums that are changes of what the client keeps;
    nothing where they agree."""

    @property
    def total(self) -> Aggregate:
        """What counts, added up."""
        return replace(Aggregate.of(self.counted), norms=tuple(norm_of(upload) for upload in self.counted))

    @property
    def nbytes(self) -> int:
        """What it costs to tell the clients."""
        return sum(vector.nbytes for correction in self.corrections for vector in correction.values())


def screened(method: Algorithm, server: State, uploads: Sequence[Upload]) -> Screening:
    """What the server counts of a round's uploads, and what the clients are told of it.

    Args:
        method: A method that looks at single uploads.
        server: The server's state before the round.
        uploads: What arrived, in the order of clients.
    """
    answers = method.counted(server, uploads)
    kept = [k for k, answer in enumerate(answers) if answer is not None]
    counted = [answer for answer in answers if answer is not None]
    corrections = [
        {
            name: upload.sums[name] - uploads[k].sums[name]
            for name in method.told
            if name in upload.sums and not upload.sums[name].equal(uploads[k].sums[name])
        }
        for k, upload in zip(kept, counted, strict=True)
    ]
    return Screening(kept, counted, corrections)


def norm_of(upload: Upload) -> float:
    """The norm of an upload's vector; infinite where it is beyond the largest number."""
    try:
        return upload.sums[vector_of(upload)].norm()
    except OverflowError:
        return math.inf


def vector_of(upload: Upload) -> str:
    """The name of the one vector that an upload holds."""
    (name,) = [name for name in upload.sums if name != NUMBERS]
    return name


def with_vector(upload: Upload, name: str, vector: Vec) -> Upload:
    """An upload with another vector in place of its own."""
    return replace(upload, sums={**upload.sums, name: vector}, wire=None)


def _flat(vector: Vec) -> Tensor:
    return torch.cat([t.double().flatten() for t in vector.values()])


def _like(flat: Tensor, vector: Vec) -> Vec:
    parts = torch.split(flat, [t.numel() for t in vector.values()])
    return Vec({n: p.reshape(t.shape).to(t.dtype) for (n, t), p in zip(vector.items(), parts, strict=True)})


def _distances(messages: Tensor, point: Tensor) -> Tensor:
    distances: Tensor = torch.linalg.vector_norm(messages - point, dim=1)
    return distances
