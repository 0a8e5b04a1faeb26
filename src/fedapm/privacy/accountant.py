"""How much privacy is spent: exact for the Gaussian mechanism, composed over rounds.

A client that took part in n rounds, with a message of norm S at most in each and noise of standard deviation σ·S on
every sum, is as hard to tell from a client that sent zeros as N(0, 1) is from N(μ, 1), with μ = √n/σ. This holds
whoever else takes part, and however later rounds depend on what was released before. Nothing is claimed for the
selection of clients, which is not secret: a client counts with the rounds that it was selected for.

Dong, Roth, Su: Gaussian Differential Privacy. Journal of the Royal Statistical Society B, 2022.
Balle, Wang: Improving the Gaussian Mechanism for Differential Privacy. ICML 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedapm.privacy.noise import span

LARGEST = 1e6
"""The largest ε that is told from an infinite one."""
Draw = Callable[[int, int], Sequence[int]]
"""The clients that are selected, given their number and the round."""


def gaussian_delta(epsilon: float, mu: float) -> float:
    """δ at which N(0, 1) and N(μ, 1) are (ε, δ)-indistinguishable.

    Args:
        epsilon: ε.
        mu: μ, zero or more.
    """
    from scipy.special import log_ndtr  # takes as long to import as the package

    if mu == 0:
        return 0.0
    first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return max(math.exp(first) - math.exp(min(second, first)), 0.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε for a δ; infinite where it is beyond a million.

    Args:
        mu: μ, zero or more.
        delta: δ, between 0 and 1.
    """
    from scipy.optimize import brentq  # takes as long to import as the package

    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    if gaussian_delta(LARGEST, mu) > delta:
        return math.inf
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, LARGEST, xtol=1e-12))


@dataclass(frozen=True)
class Accountant:
    """ε after each round of a run."""

    noise_multiplier: float
    delta: float
    draw: Draw
    tree: bool = False
    """Whether noise is on sums over several rounds; see :mod:`fedapm.privacy.noise`."""
    _squares: dict[int, list[int]] = field(default_factory=dict, compare=False, repr=False)

    def sensitivity(self, m: int, rounds: int) -> float:
        """How far one client can move everything that noise was added to in the first rounds, in multiples of S.

        Without a tree it is √n for the client that took part most often, in n rounds.

        Args:
            m: The number of clients.
            rounds: The number of rounds.
        """
        if len(self._squares.get(m, ())) <= rounds:
            self._squares[m] = self._largest_squares(m, 2 * rounds)
        return math.sqrt(self._squares[m][rounds])

    def epsilon(self, m: int, rounds: int) -> float:
        """ε after so many rounds, of the client among m that spent most."""
        return gaussian_epsilon(self.sensitivity(m, rounds) / self.noise_multiplier, self.delta)

    def _largest_squares(self, m: int, rounds: int) -> list[int]:
        taken, squares, most = np.zeros((rounds + 1, m), np.int64), np.zeros(m, np.int64), [0]
        for round in range(1, rounds + 1):
            taken[round] = taken[round - 1]
            taken[round, list(self.draw(m, round))] += 1
            # a client moves the sum over the rounds of a node by S for each in which it took part
            squares += (taken[round] - taken[round - span(round, self.tree)]) ** 2
            most.append(int(squares.max()))
        return most
