"""Many comparisons at once: p-values of paired differences, and Holm's correction of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from scipy.special import stdtr


def paired_p(left: Mapping[int, float], right: Mapping[int, float]) -> float | None:
    """The two-sided p-value of a paired t-test over the common seeds.

    Args:
        left: Values by seed.
        right: Values by seed.

    Returns:
        None with fewer than two common seeds, which say nothing about chance.
    """
    seeds = sorted(left.keys() & right.keys())
    if len(seeds) < 2:
        return None
    differences = [left[seed] - right[seed] for seed in seeds]
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    # equal numbers differ by rounding errors at most
    if abs(mean) <= 1e-12 and spread <= 1e-12:
        return 1.0
    if spread <= 1e-12 * abs(mean):
        return 0.0
    t = abs(mean) / (spread / math.sqrt(len(seeds)))
    return float(2 * stdtr(len(seeds) - 1, -t))


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for their number: that any one below 0.05 is a mistake has a chance of 5% at most.

    Args:
        values: A p-value for each comparison.

    Returns:
        The corrected one for each, in the same order.
    """
    corrected: dict[str, float] = {}
    highest = 0.0
    for place, name in enumerate(sorted(values, key=lambda name: values[name])):
        highest = max(highest, min(1.0, (len(values) - place) * values[name]))
        corrected[name] = highest
    return {name: corrected[name] for name in values}
