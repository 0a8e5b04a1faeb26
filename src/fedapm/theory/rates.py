"""Observed rates: which of the analysis's three rates a curve shows, by its empirical Łojasiewicz exponent θ.

With exponent θ, the gaps x_t = L̃_t − L̃_∞ of a sequence that goes down obey x_t − x_{t+1} ≈ k·x_{t+1}^{2θ}. Its
decreases then follow

    d_t = d_0·(1 + κ·b·t)^(−1/κ),    κ = (2θ − 1)/(2θ),

which is d_0·exp(−b·t) at θ = 1/2. Fitted to the decreases, this needs no guess at the limit L̃_∞.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["finite", "linear", "sublinear", "unclear"]
Floats = NDArray[np.float64]

FEWEST = 8
"""Decreases that a fit needs."""
LINEAR_UP_TO = 0.55
"""The largest exponent that still counts as 1/2: a curve of finite length never shows it exactly."""
ROUNDING = 1e-13
"""Decreases below this share of the values themselves are rounding."""
ABOVE_NOISE = 5.0
"""How many times the largest late increase a decrease must be to count as one."""
LOWEST, HIGHEST = -5.0, 0.5
"""The κ that are tried: exponents from 1/12 to 1."""


@dataclass(frozen=True)
class Rate:
    """How a curve went down."""

    kind: Kind
    exponent: float
    """θ."""
    error: float
    """Its standard error, from the scatter of the decreases around the fit."""
    first: int
    last: int
    """The rounds between which it was measured."""
    window: int = 1
    """How many rounds were taken together, so that each step is a decrease."""
    factor: float | None = None
    """Linear: what the gap is multiplied by in a round, at the end."""

    @property
    def power(self) -> float | None:
        """Sublinear: p, where the gap falls like t^(−p)."""
        return 1 / (2 * self.exponent - 1) if self.kind == "sublinear" else None


def observed_rate(values: Sequence[float]) -> Rate | str:
    """The rate at which a curve goes down, from its tail: the last two thirds of what is above noise.

    Args:
        values: The curve, one value a round, such as the Lyapunov function.

    Returns:
        The rate, or why there is none to be seen.
    """
    curve = np.asarray(values, dtype=np.float64)
    if len(curve) <= FEWEST:
        return f"{len(curve)} rounds are too few"
    if not np.isfinite(curve).all():
        return "some values are not finite"
    steps = curve[:-1] - curve[1:]
    rounding = ROUNDING * float(np.abs(curve).max())
    noise = max(0.0, -float(steps[len(steps) // 2 :].min()))
    falling = np.flatnonzero(steps > max(ABOVE_NOISE * noise, rounding))
    if not len(falling):
        return "it goes up as much as down" if (steps > rounding).any() else "it does not go down"
    end = int(falling[-1]) + 1
    if _comes_to_rest(steps, end, rounding):
        return Rate("finite", 0.0, 0.0, 0, end)
    start = end // 3
    for window in _doubling((end - start) // FEWEST):
        ends = np.arange(end, start - 1, -window)[::-1]
        drops = curve[ends[:-1]] - curve[ends[1:]]
        if (drops > 0).all():
            return _fitted(ends[:-1] - ends[0], drops, int(ends[0]), end, window)
    return "too few rounds go down" if end < 2 * FEWEST else "it goes up and down"


def _comes_to_rest(steps: Floats, end: int, rounding: float) -> bool:
    """Whether the curve stops at once, rather than by getting slower until rounding hides it."""
    rest = steps[end:]
    return len(rest) >= 3 and bool(np.abs(rest).max() <= rounding) and bool(steps[end - 1] > 1e-3 * steps.max())


def _doubling(most: int) -> list[int]:
    return [1 << k for k in range(max(most, 0).bit_length())]


def _fitted(times: NDArray[np.int64], drops: Floats, first: int, last: int, window: int) -> Rate:
    from scipy.optimize import least_squares

    t, y = times.astype(np.float64), np.log(drops)
    speed = max((y[0] - y[-1]) / t[-1], 1e-6)

    def residuals(p: Floats) -> Floats:
        level, log_speed, kappa = map(float, p)
        return level - _decay(kappa, math.exp(log_speed) * t) - y

    fits = [
        least_squares(
            residuals,
            [y[0], math.log(speed * growth), kappa],
            bounds=([-np.inf, -50.0, LOWEST], [np.inf, 20.0, HIGHEST]),
            x_scale="jac",
        )
        for kappa, growth in ((0.0, 1.0), (0.3, 3.0), (-0.5, 0.5))
    ]
    best = min(fits, key=lambda fit: float(fit.cost))
    kappa = float(best.x[2])
    theta = 1 / (2 * (1 - kappa))
    error = 2 * theta**2 * _standard_error(best.jac, float(best.cost))
    pace = math.exp(best.x[1]) / max(1 + kappa * math.exp(best.x[1]) * t[-1], 1e-12)
    kind = _kind(theta, error)
    return Rate(kind, theta, error, first, last, window, math.exp(-pace) if kind == "linear" else None)


def _decay(kappa: float, bt: Floats) -> Floats:
    """log(1 + κbt)/κ, which is bt at κ = 0."""
    if abs(kappa) < 1e-6:
        return bt - 0.5 * kappa * bt**2
    return np.log1p(np.maximum(kappa * bt, -1 + 1e-9)) / kappa


def _standard_error(jacobian: Floats, cost: float) -> float:
    """Of the last parameter; infinite where the fit says nothing about it."""
    free = len(jacobian) - jacobian.shape[1]
    information = jacobian.T @ jacobian
    if free <= 0 or np.linalg.matrix_rank(information) < len(information):
        return math.inf
    return math.sqrt(2 * cost / free * float(np.linalg.inv(information)[-1, -1]))


def _kind(theta: float, error: float) -> Kind:
    if not 2 * error <= max(abs(theta - LINEAR_UP_TO), 0.05):
        return "unclear"
    return "linear" if theta <= LINEAR_UP_TO else "sublinear"
