"""How a search is done: how many trials, with which settings, scored by which metric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fedapm.core.metrics import METRICS, Metric
from fedapm.core.search_space import FloatRange
from fedapm.errors import FedapmError, did_you_mean
from fedapm.tuning.scorer import Scorer
from fedapm.tuning.space import parse_dimension
from fedapm.tuning.spaces import SPACES

SAMPLERS = ("grid", "random", "tpe")
PRUNERS = ("none", "median", "halving")
SELECTS = ("last", "best")


def tuning_metrics() -> dict[str, Metric]:
    """The metrics that trials can be scored by: those of held-out data, a user's own among them."""
    return {name: metric for name, metric in METRICS.items() if metric.data == "test"}


@dataclass(frozen=True)
class Options:
    """How every method is searched.

    Raises:
        FedapmError: Where a name is unknown or a number makes no sense.
    """

    trials: int = 20
    """Trials of each method, the first one being its present settings."""
    rounds: int | None = None
    """Rounds of a trial; the experiment's if not given."""
    seeds: tuple[int, ...] = (0,)
    """Every trial is run with each of them and scored by the mean."""
    space: str | None = None
    """A named space: wide, paper or client; wide if neither this nor a search is set."""
    search: tuple[str, ...] = ()
    """The user's own space, setting by setting."""
    sampler: str | None = None
    """grid, random or tpe; grid where all values are listed and tpe elsewhere if not given."""
    pruner: str = "median"
    """What ends a trial early: none, median or halving."""
    metric: str = "accuracy"
    """What a trial is scored by: the client mean of accuracy, f1, auc, test_loss or a metric of your own, on validation
    data."""
    select: str = "last"
    """At the last round, or at the best one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.metric.removeprefix("-"))
        named: tuple[tuple[str, str | None, Iterable[str]], ...] = (
            ("space", self.space, SPACES),
            ("sampler", self.sampler, SAMPLERS),
            ("pruner", self.pruner, PRUNERS),
            ("metric", self.metric, tuning_metrics()),
            ("select", self.select, SELECTS),
        )
        for option, name, known in named:
            if name is not None and name not in known:
                raise FedapmError(f"unknown {option} {name!r}; {did_you_mean(name, known)}")
        if self.space is not None and self.search:
            raise FedapmError("give --space or --search, not both: a search of your own replaces the space.")
        if self.trials < 1:
            raise FedapmError(f"--trials {self.trials}: there must be at least one trial of every method.")
        if self.rounds is not None and self.rounds < 1:
            raise FedapmError(f"--rounds {self.rounds}: a trial needs at least one round.")
        if not self.seeds or len({*self.seeds}) != len(self.seeds):
            raise FedapmError("tuning needs at least one seed, and each only once.")

    @property
    def space_name(self) -> str | None:
        """The named space; None where the user has one of their own."""
        return None if self.search else self.space or "wide"

    @property
    def chosen_sampler(self) -> str:
        """The sampler that was set, or the one that suits the space."""
        if self.sampler is not None:
            return self.sampler
        if self.space_name is not None:
            return "tpe" if self.space_name == "wide" else "grid"
        return "tpe" if any(isinstance(parse_dimension(text).values, FloatRange) for text in self.search) else "grid"

    @property
    def scorer(self) -> Scorer:
        """How trials are scored."""
        return Scorer(self.metric, self.select)

    def text(self, score: float | None) -> str:
        """A score as people read it: the metric itself, where small values are good."""
        return "–" if score is None else f"{self.scorer.sign * score:.4f}"

    def as_dict(self) -> dict[str, Any]:
        """The options as tune.json keeps them."""
        return asdict(self) | {
            "space": self.space_name,
            "search": list(self.search),
            "seeds": list(self.seeds),
            "sampler": self.chosen_sampler,
        }
