"""Splits that keep what belongs together on one side: the windows of a recording, or what came before from after."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedapm.errors import FedapmError

Array = np.ndarray[Any, Any]
DRAWS = 20
"""Random orders of groups that are tried; the one whose held-out part has the classes most like all samples' wins."""


def held_out_positions(
    groups: Array | None, times: Array | None, labels: Array | None, fraction: float, stream: np.random.Generator
) -> Array:
    """The samples to hold out, whole groups of them.

    With times, the latest groups are held out (the latest samples where there are no groups); without, random ones.

    Args:
        groups: The group of each sample; None if every sample stands alone.
        times: When each sample was taken; None if that does not matter.
        labels: The class of each sample; None if there are none.
        fraction: The share of samples to hold out, met as nearly as whole groups allow.
        stream: The source of randomness.

    Returns:
        Sorted positions; at least one group is held out and at least one is not.

    Raises:
        FedapmError: All samples are one group.
    """
    column = groups if groups is not None else times
    assert column is not None
    _, unit = np.unique(column, return_inverse=True)
    sizes = np.bincount(unit)
    if len(sizes) < 2:
        what = "recording (groups)" if groups is not None else "moment (time)"
        raise FedapmError(f"all {len(column)} samples are of one {what}, so none can be held out")
    if times is not None:
        latest = np.full(len(sizes), -np.inf)
        np.maximum.at(latest, unit, times.astype(np.float64))
        return _positions(unit, np.argsort(-latest, kind="stable"), sizes, fraction)
    drawn = [_positions(unit, stream.permutation(len(sizes)), sizes, fraction) for _ in range(DRAWS)]
    if labels is None:
        return drawn[0]
    return min(drawn, key=lambda positions: _unlikeness(labels, positions))


def _positions(unit: Array, order: Array, sizes: Array, fraction: float) -> Array:
    total = np.cumsum(sizes[order])
    count = int(np.abs(total[:-1] - fraction * total[-1]).argmin()) + 1
    return np.flatnonzero(np.isin(unit, order[:count]))


def _unlikeness(labels: Array, positions: Array) -> float:
    values, codes = np.unique(labels, return_inverse=True)
    everywhere = np.bincount(codes, minlength=len(values)) / len(codes)
    here = np.bincount(codes[positions], minlength=len(values)) / len(positions)
    return float(np.abs(everywhere - here).sum())
