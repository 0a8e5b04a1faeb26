"""Splits of one client's samples in two: training and test, or training and validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedapm.core.samples import Samples
from fedapm.errors import FedapmError

Positions = np.ndarray[Any, Any]


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
    count = int(held_out_count(len(index), fraction))
    shuffled = random_order(index, labels, stratify, stream)
    return np.sort(shuffled[count:]), np.sort(shuffled[:count])


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
    return samples[torch.as_tensor(kept)], samples[torch.as_tensor(held_out)]


def random_order(index: Positions, labels: Positions, stratify: bool, stream: np.random.Generator) -> Positions:
    """Samples in random order; stratified, the first ones have the classes in the proportions of all."""
    shuffled = stream.permutation(index)
    if not stratify:
        return shuffled
    # by the rank of each sample within its class, as a share of the class
    _, classes, counts = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    rank = np.empty(len(shuffled))
    rank[np.argsort(classes, kind="stable")] = np.arange(len(shuffled)) - np.repeat(np.cumsum(counts) - counts, counts)
    return shuffled[np.argsort((rank + 0.5) / counts[classes], kind="stable")]


def limited(samples: Samples, limit: int | None, stream: np.random.Generator) -> Samples:
    """At most so many samples, in the proportions of their classes."""
    if limit is None or len(samples) <= limit:
        return samples
    order = random_order(np.arange(len(samples)), samples.targets.numpy(), samples.classified, stream)
    return samples[torch.as_tensor(np.sort(order[:limit]))]


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise FedapmError(f"the test fraction must be between 0 and 1, not {fraction}.")
