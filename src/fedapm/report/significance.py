"""When a difference between two methods is more than chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean difference over the seeds two methods share, with its 95% t-interval.

    Pairing by seed takes out what both have in common: the split of the data and the start.
    ``low`` and ``high`` are None with a single seed, which says nothing about chance.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_difference(left: Mapping[int, float], right: Mapping[int, float]) -> Difference | None:
    """Left minus right over the common seeds; None where there are none."""
    seeds = sorted(left.keys() & right.keys())
    if not seeds:
        return None
    differences = [_clean(left[seed] - right[seed], left[seed]) for seed in seeds]
    mean = statistics.fmean(differences)
    if len(seeds) < 2:
        return Difference(mean, None, None, 1)
    quantile = float(stdtrit(len(seeds) - 1, (1 + CONFIDENCE) / 2))
    half = quantile * statistics.stdev(differences) / math.sqrt(len(seeds))
    return Difference(mean, mean - half, mean + half, len(seeds))


def clear_best(columns: Sequence[Mapping[int, float]], higher_is_better: bool) -> int | None:
    """The position of the best entry, if it is significantly better than each of the others.

    Args:
        columns: The values of each method by seed.
        higher_is_better: Whether the highest mean is the best.

    Returns:
        None where two are equally good, where fewer than two methods have a value, or where a difference is not
        significant. A rival with a lower mean may vary so much that it cannot be told apart.
    """
    sign = 1 if higher_is_better else -1
    means = {i: sign * statistics.fmean(values.values()) for i, values in enumerate(columns) if values}
    if len(means) < 2:
        return None
    best, *others = sorted(means, key=lambda i: -means[i])
    for rival in others:
        difference = paired_difference(columns[best], columns[rival])
        if difference is None or not difference.clear or sign * difference.mean <= 0:
            return None
    return best


def _clean(difference: float, scale: float) -> float:
    """Rounding errors of equal numbers are no difference."""
    return 0.0 if abs(difference) <= 1e-12 * max(1.0, abs(scale)) else difference
