"""The table [privacy] of an experiment file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Lt
from pydantic import PositiveFloat, PositiveInt

from fedapm.core.ranges import check_ranges
from fedapm.privacy.accountant import gaussian_epsilon

TABLE = "privacy"
DELTA, CLIP, NOISE_MULTIPLIER = 1e-5, 1.0, 1.0


@dataclass(frozen=True)
class PrivacySettings:
    """Differential privacy of clients or of samples; it is on where anything in this table is set."""

    epsilon: PositiveFloat | None = None
    """ε: the budget of a client. The run ends before the round that would exceed it, or, where samples are protected,
    a client takes part in no further round, and the run ends when all budgets are spent. Without a budget ε is only
    recorded."""
    delta: Annotated[float, Gt(0), Lt(1)] | None = None
    """δ; 0.00001 if not given. It should be well below one over the number of clients."""
    level: Literal["client", "sample"] | None = None
    """What is protected: `client`, all data of a client against whoever sees the shared model, if not given; or
    `sample`, each sample against whoever sees what its client sends, the server too."""
    clip: PositiveFloat | Literal["adaptive"] | None = None
    """S: the norm that a client's change of the model has at most; 1 if not given. What is withheld is sent in a later
    round. `adaptive`: the median of these norms, estimated privately. With `level = "sample"` the norm of a sample's
    gradient."""
    noise_multiplier: PositiveFloat | None = None
    """σ: the noise on the sum of a round has the standard deviation σ·S; 1 if not given."""
    noise: Literal["system", "keyed"] | None = None
    """Where noise comes from: the operating system, if not given. `keyed` repeats it with the run's seed, which
    protects nobody and is for tests."""

    sampling: Literal["known", "poisson"] | None = None
    """How clients are drawn: so that everybody may know it, if not given; or each with probability `engine.fraction`,
    secretly (`poisson`), for which ε is smaller. Needs the extra `privacy`."""
    accountant: Literal["rdp", "prv"] | None = None
    """How ε of secret samples is computed: by Rényi's divergence, if not given; or numerically (`prv`), which is
    tighter and takes a second a round."""
    samples: PositiveInt | None = None
    """How many training samples a client is taken to have where ρ and σ of a method follow their mean number; in a
    simulation the true ones if not given. On Flower they stay on the nodes, so it must be given there."""
    correlation: Literal["tree"] | None = None
    """How noise of different rounds belongs together: not at all, if not given, so that it adds up in the model; or as
    a `tree`, which takes most of it back and costs more where a client takes part in many rounds."""

    def __post_init__(self) -> None:
        check_ranges(self, TABLE)
        self._check_combinations()
        if self.epsilon is None or self.poisson or self.per_sample:
            return
        once = gaussian_epsilon(1 / self.sigma, self.failure)
        if once > self.epsilon:
            raise ValueError(
                f"{TABLE}.epsilon = {self.epsilon:g} does not allow a single round: one costs {once:.3g} with "
                f"{TABLE}.noise_multiplier = {self.sigma:g}; raise either."
            )

    def _check_combinations(self) -> None:
        if self.correlation is not None and (self.poisson or self.per_sample or self.adaptive):
            raise ValueError(
                f"{TABLE}.correlation is accounted for with known clients and a fixed {TABLE}.clip; leave one of them "
                "out."
            )
        if self.accountant is not None and not (self.poisson or self.per_sample):
            raise ValueError(f'{TABLE}.accountant is for {TABLE}.sampling = "poisson"; ε is exact without it.')
        if self.per_sample and (self.poisson or self.adaptive):
            what = "leave privacy.sampling out" if self.poisson else "give a number for clip"
            raise ValueError(
                f'{TABLE}.level = "sample" draws samples secretly by itself, with a fixed {TABLE}.clip; {what}.'
            )
        if self.per_sample and self.samples is not None:
            raise ValueError(
                f'{TABLE}.samples is for {TABLE}.level = "client"; ε of samples takes the true number of each client.'
            )

    @property
    def poisson(self) -> bool:
        """Whether clients are drawn secretly."""
        return self.sampling == "poisson"

    @property
    def adaptive(self) -> bool:
        """Whether S follows the clients' norms."""
        return self.clip == "adaptive"

    @property
    def per_sample(self) -> bool:
        """Whether single samples are protected, and not clients."""
        return self.level == "sample"

    @property
    def kind(self) -> Literal["rdp", "prv"]:
        """The accountant of secret samples."""
        return self.accountant or "rdp"

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
        return CLIP if self.clip is None or self.clip == "adaptive" else self.clip

    @property
    def sigma(self) -> float:
        """σ."""
        return NOISE_MULTIPLIER if self.noise_multiplier is None else self.noise_multiplier
