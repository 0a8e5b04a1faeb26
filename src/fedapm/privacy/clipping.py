"""AdaptiveClip: S as a quantile of the norms of messages, estimated privately.

Each client sends one bit, whether its message was shorter than S. The noised share b̃ of such clients moves S:

    S ← S·exp(−η(b̃ − γ))

The bit and the message are released together. Of their common σ the bit takes a little: with noise σ_b on the sum of
bits, which one client moves by a half, the message has σ_Δ = (σ⁻² − (2σ_b)⁻²)^(−1/2).

Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping. NeurIPS 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

QUANTILE, STEP, SHARE = 0.5, 0.2, 1 / 20
"""γ, η, and σ_b as a share of the clients in a round."""
START = 0.1
"""S in the first round."""


@dataclass(frozen=True)
class AdaptiveClip:
    """How S follows the norms of messages."""

    sigma: float
    """σ of bit and message together."""

    def bit_deviation(self, expected: float) -> float:
        """σ_b, with so many clients expected in a round."""
        return max(SHARE * expected, self.sigma)

    def vector_sigma(self, expected: float) -> float:
        """σ_Δ."""
        return 1 / math.sqrt(self.sigma**-2 - (2 * self.bit_deviation(expected)) ** -2)

    def moved(self, clip: float, noised_share: float) -> float:
        """S after a round.

        Args:
            clip: S in the round.
            noised_share: b̃, the share of clients whose messages were shorter.
        """
        return clip * math.exp(-STEP * (min(max(noised_share, 0.0), 1.0) - QUANTILE))
