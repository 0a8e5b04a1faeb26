"""How the split is searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedapm.core.metrics import ACCURACY, METRICS, TEST_LOSS
from fedapm.data.federation import Federation
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments.settings import Experiment
from fedapm.tuning.options import tuning_metrics
from fedapm.tuning.split.ladder import Rung, ladder

FULL_RUNS = 4
"""What a search costs where no budget is given, in runs of the experiment's number of rounds."""
SHARE = 0.2
"""Default share of each client's training data that candidates are scored on."""
CHOICES = ("simplest", "one-se")


@dataclass(frozen=True)
class SplitOptions:
    """How the candidates are tried. What is not given is chosen to suit the experiment.

    Raises:
        FedapmError: Where a name is unknown or a number makes no sense.
    """

    budget: int | None = None
    """Rounds of all runs together; four times the experiment's if not given."""
    seeds: tuple[int, ...] | None = None
    """The first is used throughout, all of them at the end; the experiment's and the next if not given."""
    metric: str | None = None
    """What counts on validation data; accuracy for classes and the loss for quantities if not given."""
    validation: float = SHARE
    """The share of each client's training data that candidates are scored on."""
    choose: str = "simplest"
    """Which candidate is taken: the ``simplest`` of those that the best does not clearly beat (the 95% interval of the
    difference reaches zero), or of those that are at most one standard error behind it (``one-se``)."""

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 1:
            raise FedapmError(f"--budget {self.budget}: a search needs at least one round.")
        if self.metric is not None and self.metric not in tuning_metrics():
            raise FedapmError(f"unknown metric {self.metric!r}; {did_you_mean(self.metric, tuning_metrics())}")
        if self.choose not in CHOICES:
            raise FedapmError(f"--choose {self.choose!r}: {did_you_mean(self.choose, CHOICES)}")
        if self.seeds is not None and (not self.seeds or len({*self.seeds}) != len(self.seeds)):
            raise FedapmError("the search needs at least one seed, and each only once.")
        if not 0 < self.validation < 1:
            raise FedapmError(
                f"the search needs validation data: {self.validation} is not a share of it between 0 and 1."
            )


@dataclass(frozen=True)
class SplitPlan:
    """The options of one search with everything decided."""

    metric: str
    seeds: tuple[int, ...]
    budget: int
    rounds: int
    """The rounds of the run that the split is for; no candidate is trained longer."""
    validation: float
    asked: bool
    """Whether the budget was given and must be kept."""
    choose: str = "simplest"

    @classmethod
    def of(cls, options: SplitOptions, experiment: Experiment, clients: Federation) -> SplitPlan:
        """Fill in what was not given."""
        engine = experiment.engine
        return cls(
            options.metric or (ACCURACY if clients[0].train.classified else TEST_LOSS).name,
            options.seeds or (engine.seed, engine.seed + 1),
            options.budget or FULL_RUNS * engine.rounds,
            engine.rounds,
            options.validation,
            options.budget is not None,
            options.choose,
        )

    def rungs(self, candidates: int, continued: bool) -> tuple[Rung, ...]:
        """How many candidates are trained for how long, as :func:`fedapm.tuning.split.ladder.ladder` has it."""
        return ladder(candidates, self.budget, self.rounds, self.seeds, asked=self.asked, continued=continued)

    def as_dict(self) -> dict[str, Any]:
        """The plan as split.json keeps it."""
        return {
            "metric": METRICS.find(self.metric).describe(),
            "seeds": list(self.seeds),
            "budget": self.budget,
            "rounds": self.rounds,
            "validation": self.validation,
            "choose": self.choose,
        }
