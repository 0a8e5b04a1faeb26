"""The table [privacy] of an experiment file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Lt
from pydantic import PositiveFloat

from fedapm.core.ranges import check_ranges
from fedapm.privacy.accountant import gaussian_epsilon

TABLE = "privacy"
DELTA, CLIP, NOISE_MULTIPLIER = 1e-5, 1.0, 1.0


@dataclass(frozen=True)
class PrivacySettings:
    """Client-level differential privacy of the shared model; it is on where anything in this table is set."""

    epsilon: PositiveFloat | None = None
    """ε: the budget. The run ends before the round that would exceed it; without a budget ε is only recorded."""
    delta: Annotated[float, Gt(0), Lt(1)] | None = None
    """δ; 0.00001 if not given. It should be well below one over the number of clients."""
    clip: PositiveFloat | None = None
    """S: the norm that a client's change of the model has at most; 1 if not given. What is withheld is sent in a later
    round."""
    noise_multiplier: PositiveFloat | None = None
    """σ: the noise on the sum of a round has the standard deviation σ·S; 1 if not given."""
    noise: Literal["system", "keyed"] | None = None
    """Where noise comes from: the operating system, if not given. `keyed` repeats it with the run's seed, which
    protects nobody and is for tests."""

    correlation: Literal["tree"] | None = None
    """How noise of different rounds belongs together: not at all, if not given, so that it adds up in the model; or as
    a `tree`, which takes most of it back and costs more where a client takes part in many rounds."""

    def __post_init__(self) -> None:
        check_ranges(self, TABLE)
        if self.epsilon is None:
            return
        once = gaussian_epsilon(1 / self.sigma, self.failure)
        if once > self.epsilon:
            raise ValueError(
                f"{TABLE}.epsilon = {self.epsilon:g} does not allow a single round: one costs {once:.3g} with "
                f"{TABLE}.noise_multiplier = {self.sigma:g}; raise either."
            )

    @property
    def active(self) -> bool:
        """Whether anything is set."""
        return self != PrivacySettings()

    @property
    def failure(self) -> float:
        """δ."""
        return DELTA if self.delta is None else self.delta

    @property
    def bound(self) -> float:
        """S."""
        return CLIP if self.clip is None else self.clip

    @property
    def sigma(self) -> float:
        """σ."""
        return NOISE_MULTIPLIER if self.noise_multiplier is None else self.noise_multiplier
