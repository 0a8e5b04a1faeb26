"""The score of a trial's run: one metric on validation data, at the last round or at the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapm.core.metrics import ACCURACY, METRICS, TEST_LOSS, Metric
from fedapm.errors import FedapmError


@dataclass(frozen=True)
class Scorer:
    """Which metric counts, and at which round. Higher scores are better: a loss counts as its negative."""

    name: str
    """The metric."""
    select: str
    """``last`` or ``best`` round."""

    @property
    def metric(self) -> Metric:
        """The metric's description."""
        return METRICS.find(self.name)

    @property
    def sign(self) -> int:
        """What turns the metric into a score, and back."""
        return 1 if self.metric.higher_is_better else -1

    @property
    def worst(self) -> float:
        """The score of a model that diverged."""
        return self.sign * self.metric.diverged

    def score(self, record: Mapping[str, Any]) -> float | None:
        """The score after a round.

        Args:
            record: The record of a round.

        Returns:
            The client mean, with its sign; None where nothing was evaluated.

        Raises:
            FedapmError: Where no client has the metric on its validation data.
        """
        if not record["evaluations"]:
            return None
        # the first view is the model a method is meant for, as the personal one of Ditto
        evaluation = next(iter(record["evaluations"].values()))
        summary = evaluation.get(self.name)
        if summary is None and (self.metric.higher_is_better or self.name not in evaluation["per_client"]):
            raise FedapmError(
                f"no client has {self.name} on its validation data to judge trials by; take another --metric."
            )
        if summary is None:
            return self.worst
        # clients whose loss is infinite are not in its mean, which would flatter a model that failed on them
        if self.name == TEST_LOSS.name and summary["clients"] < evaluation.get(ACCURACY.name, summary)["clients"]:
            return self.worst
        return self.sign * float(summary["mean"])

    def run_score(self, records: Sequence[Mapping[str, Any]]) -> float:
        """The score of a whole run, by the records of its rounds."""
        scores = [score for record in records if record["round"] > 0 and (score := self.score(record)) is not None]
        return scores[-1] if self.select == "last" else max(scores)
