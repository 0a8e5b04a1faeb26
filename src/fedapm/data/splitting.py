"""Splits of one client's samples in two: training and test, or training and validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedapm.core.samples import Samples
from fedapm.errors import FedapmError

Positions = np.ndarray[Any, Any]
CLASSES = 1024
"""Numbers of classes up to which they are taken as they are; larger ones are numbered anew."""


def split_test(
    index: Positions, labels: Positions, stratify: bool, fraction: float, stream: np.random.Generator
) -> tuple[Positions, Positions]:
    """Split a client's samples into training and test, with at least one sample in each.

    Args:
        index: The positions of the client's samples.
        labels: The class of each sample of the data set.
        stratify: Whether the same fraction of each class goes to test, as nearly as whole samples allow.
        fraction: The share of samples for testing.
        stream: The source of randomness.

    Returns:
        The sorted positions of the training samples, and of the test samples.
    """
    _check_fraction(fraction)
    count = _held_out(len(index), fraction)
    shuffled = random_order(index, labels, stratify, stream)
    kept, held_out = shuffled[count:], shuffled[:count]
    kept.sort()
    held_out.sort()
    return kept, held_out


def held_out_count(sizes: Any, fraction: float) -> Any:
    """How many of so many samples are held out, where each stands alone; for one client or for all at once."""
    return np.minimum(np.maximum(np.rint(fraction * np.asarray(sizes)).astype(np.int64), 1), np.asarray(sizes) - 1)


def split_samples(samples: Samples, fraction: float, stream: np.random.Generator) -> tuple[Samples, Samples]:
    """Hold a share of some samples out, stratified by class: the samples that stay, and those held out.

    Samples of one group are never on both sides, and with times the latest are held out.
    """
    index = np.arange(len(samples))
    if samples.belong_together:
        _check_fraction(fraction)
        held_out = samples.held_out(fraction, stream)
        kept = np.setdiff1d(index, held_out)
    else:
        kept, held_out = split_test(index, samples.targets.numpy(), samples.classified, fraction, stream)
    return samples[torch.from_numpy(kept)], samples[torch.from_numpy(held_out)]


def split_together(
    samples: Sequence[Samples], fraction: float, streams: Sequence[np.random.Generator]
) -> list[tuple[Samples, Samples]]:
    """Hold a share of several clients' samples out, stratified by class: as :func:`split_samples` does for each.

    The work is done for all clients of one size at once, which takes a fraction of the time.

    Args:
        samples: Each client's.
        fraction: The share that is held out.
        streams: Each client's source of randomness.

    Returns:
        For each client the samples that stay, and those held out.
    """
    _check_fraction(fraction)
    found: dict[int, tuple[Samples, Samples]] = {}
    of_size: dict[int, list[int]] = {}
    for k, own in enumerate(samples):
        if own.belong_together or not own.classified or own.targets.ndim != 1:
            found[k] = split_samples(own, fraction, streams[k])
        else:
            of_size.setdefault(len(own), []).append(k)
    for size, places in of_size.items():
        index, count = np.arange(size), _held_out(size, fraction)
        shuffled = np.array([streams[k].permutation(index) for k in places])
        labels = np.array([samples[k].targets.numpy() for k in places])
        shuffled = np.take_along_axis(shuffled, _stratified(np.take_along_axis(labels, shuffled, 1)), 1)
        kept, held_out = (torch.from_numpy(np.sort(part, 1)) for part in (shuffled[:, count:], shuffled[:, :count]))
        for k, stays, goes in zip(places, kept.unbind(), held_out.unbind(), strict=True):
            found[k] = samples[k][stays], samples[k][goes]
    return [found[k] for k in range(len(samples))]


def random_order(index: Positions, labels: Positions, stratify: bool, stream: np.random.Generator) -> Positions:
    """Samples in random order; stratified, the first ones have the classes in the proportions of all."""
    shuffled = stream.permutation(index)
    return shuffled[_stratified(labels[shuffled][np.newaxis])[0]] if stratify else shuffled


def _stratified(labels: Positions) -> Positions:
    """An order of each client's samples in which the first ones have the classes in the proportions of all.

    Args:
        labels: The classes (clients, samples).
    """
    if labels.dtype.kind == "i" and labels.size and labels.min() >= 0 and labels.max() < CLASSES:
        codes = labels
    else:
        codes = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    classes = int(codes.max(initial=0)) + 1
    # by the rank of each sample within its class, as a share of the class
    places = (codes + classes * np.arange(len(codes))[:, np.newaxis]).ravel()
    counts = np.bincount(places)
    rank = np.empty(len(places))
    rank[places.argsort(kind="stable")] = np.arange(len(places)) - (counts.cumsum() - counts).repeat(counts) + 0.5
    rank /= counts[places]
    return rank.reshape(labels.shape).argsort(1, kind="stable")


def _held_out(size: int, fraction: float) -> int:
    """What :func:`held_out_count` says of one client, in less time."""
    return min(max(round(fraction * size), 1), size - 1)


def limited(samples: Samples, limit: int | None, stream: np.random.Generator) -> Samples:
    """At most so many samples, in the proportions of their classes."""
    if limit is None or len(samples) <= limit:
        return samples
    order = random_order(np.arange(len(samples)), samples.targets.numpy(), samples.classified, stream)
    return samples[torch.as_tensor(np.sort(order[:limit]))]


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise FedapmError(f"the test fraction must be between 0 and 1, not {fraction}.")
