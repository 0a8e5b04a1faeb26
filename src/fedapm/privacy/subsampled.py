"""ε of Gaussian noise on sums over secret random samples, by the accountants of opacus.

Each member takes part in a step with probability q, independently and unknown to anybody (Poisson sampling). Then a
step costs less than with a known selection. Neighbours differ in one member that is absent.

Mironov, Talwar, Zhang: Rényi Differential Privacy of the Sampled Gaussian Mechanism. arXiv:1908.10530, 2019 (``rdp``).
Gopi, Lee, Wutschitz: Numerical Composition of Differential Privacy. NeurIPS 2021 (``prv``).
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from fedapm.core.extras import require
from fedapm.privacy.accountant import gaussian_epsilon

Kind = Literal["rdp", "prv"]
EXTRA = "privacy"
ORDERS = tuple([1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 80, 96, 128, 192, 256, 384, 512, 1024])
"""The orders α of Rényi's divergence that are tried."""


def subsampled_epsilon(rate: float, noise_multiplier: float, steps: int, delta: float, kind: Kind = "rdp") -> float:
    """ε after some steps.

    Args:
        rate: q, the probability with which a member takes part in a step.
        noise_multiplier: σ: the noise has σ times the largest norm that a member can add.
        steps: How many steps there are.
        delta: δ.
        kind: ``rdp``, which is fast, or ``prv``, which is tighter.

    Raises:
        FedapmError: If opacus is not installed.
    """
    if not steps:
        return 0.0
    if rate >= 1:
        return gaussian_epsilon(math.sqrt(steps) / noise_multiplier, delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on ends of the range of orders, and on logarithms of zero
        if kind == "prv":
            accountant = _opacus().PRVAccountant()
            accountant.history = [(noise_multiplier, rate, steps)]
            return float(accountant.get_epsilon(delta=delta))
        divergence = [steps * each for each in _divergences(rate, noise_multiplier)]
        epsilon, _ = _analysis().get_privacy_spent(orders=ORDERS, rdp=divergence, delta=delta)
        return max(float(epsilon), 0.0)


@lru_cache(maxsize=1024)
def _divergences(rate: float, noise_multiplier: float) -> list[float]:
    """Rényi's divergence of one step at each order."""
    found = _analysis().compute_rdp(q=rate, noise_multiplier=noise_multiplier, steps=1, orders=ORDERS)
    return [float(each) for each in found]


def check_installed() -> None:
    """Refuse to begin what could not be accounted for in the end; opacus is not imported yet, which takes seconds.

    Raises:
        FedapmError: If opacus is not installed.
    """
    if importlib.util.find_spec("opacus") is None:
        _opacus()


def _opacus() -> Any:
    return require("opacus.accountants", EXTRA, "the accounting of secret samples")


def _analysis() -> Any:
    return require("opacus.accountants.analysis.rdp", EXTRA, "the accounting of secret samples")


@dataclass(frozen=True)
class PoissonAccountant:
    """ε after each round of a run whose clients are drawn by Poisson sampling."""

    noise_multiplier: float
    delta: float
    fraction: float
    kind: Kind = "rdp"
    _known: dict[int, float] = field(default_factory=dict, compare=False, repr=False)

    def epsilon(self, m: int, rounds: int) -> float:
        """ε after so many rounds, of every client alike."""
        del m
        if rounds not in self._known:
            self._known[rounds] = subsampled_epsilon(
                self.fraction, self.noise_multiplier, rounds, self.delta, self.kind
            )
        return self._known[rounds]
