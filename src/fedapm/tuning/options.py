"""How a search is done: how many trials, on what, judged how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fedapm.core.search_space import FloatRange
from fedapm.errors import FedapmError, did_you_mean
from fedapm.tuning.space import parse_dimension
from fedapm.tuning.spaces import SPACES

SAMPLERS = ("grid", "random", "tpe")
PRUNERS = ("none", "median", "halving")
SELECTS = ("last", "best")
METRICS = {"accuracy": 0.0, "f1": 0.0, "auc": 0.0, "test_loss": float("-inf")}
"""What a trial may be judged by, and the score of one that diverges; a loss counts as its negative."""


@dataclass(frozen=True)
class Options:
    """The same for every method."""

    trials: int = 20
    """Trials of each method, the first one being its present settings."""
    rounds: int | None = None
    """Rounds of a trial; the experiment's if not given."""
    seeds: tuple[int, ...] = (0,)
    """Every trial is run with each; the mean of their scores counts."""
    space: str | None = None
    """A named space: wide, paper or client; wide if neither this nor a search is given."""
    search: tuple[str, ...] = ()
    """A space of the user's own, setting by setting."""
    sampler: str | None = None
    """grid, random or tpe; grid where all values are listed and tpe elsewhere if not given."""
    pruner: str = "median"
    """What ends a trial early: none, median or halving."""
    metric: str = "accuracy"
    """What a trial is judged by: the client mean of accuracy, f1, auc or test_loss on validation data."""
    select: str = "last"
    """At the last round, or at the best one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.metric.removeprefix("-"))
        named: tuple[tuple[str, str | None, Iterable[str]], ...] = (
            ("space", self.space, SPACES),
            ("sampler", self.sampler, SAMPLERS),
            ("pruner", self.pruner, PRUNERS),
            ("metric", self.metric, METRICS),
            ("select", self.select, SELECTS),
        )
        for what, given, known in named:
            if given is not None and given not in known:
                raise FedapmError(f"unknown {what} {given!r}; {did_you_mean(given, known)}")
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
        """The named space, or None where the user gives one."""
        return None if self.search else self.space or "wide"

    @property
    def chosen_sampler(self) -> str:
        """The sampler that was asked for, or the one that suits the space."""
        if self.sampler is not None:
            return self.sampler
        if self.space_name is not None:
            return "tpe" if self.space_name == "wide" else "grid"
        return "tpe" if any(isinstance(parse_dimension(text).values, FloatRange) for text in self.search) else "grid"

    @property
    def worst(self) -> float:
        """The score of a trial that diverges."""
        return METRICS[self.metric]

    def text(self, value: float | None) -> str:
        """A score as people read it; a loss is not shown as its negative."""
        if value is None:
            return "–"
        return f"{-value if self.metric == 'test_loss' else value:.4f}"

    def as_dict(self) -> dict[str, Any]:
        """All of it, for a JSON file."""
        return asdict(self) | {
            "space": self.space_name,
            "search": list(self.search),
            "seeds": list(self.seeds),
            "sampler": self.chosen_sampler,
        }
