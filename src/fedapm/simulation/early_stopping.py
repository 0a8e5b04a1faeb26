"""EarlyStopping: ends a run when a validation score no longer improves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedapm.core.metrics import METRICS, Metric
from fedapm.core.record import RoundRecord
from fedapm.errors import FedapmError, StopRun, did_you_mean
from fedapm.simulation.loop import Callback
from fedapm.simulation.problem import Problem
from fedapm.simulation.state import RunState


class EarlyStopping(Callback):
    """Ends a run when the clients' mean score has not improved for some evaluations.

    The score must be one on validation data, because a run that is stopped by its test scores is chosen by them: give
    ``train`` a ``validation`` share. Where a method has several models, the first of its views counts. A resumed run
    goes on counting where it was, and a run that was stopped early is not continued.

    Args:
        metric: The name of a metric of the run.
        patience: How many evaluations in a row may pass without an improvement.
        min_delta: How much better than the best so far counts as an improvement.
    """

    def __init__(self, metric: str = "accuracy", patience: int = 10, min_delta: float = 0.0) -> None:
        if patience < 1:
            raise FedapmError(f"EarlyStopping: patience = {patience} must be at least 1.")
        if not min_delta >= 0:
            raise FedapmError(f"EarlyStopping: min_delta = {min_delta} must not be negative.")
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self._reset(METRICS.get(metric))

    def check(self, problem: Problem) -> None:
        """Check that the run has the metric, and validation data to compute it on."""
        metrics = {metric.name: metric for metric in problem.metrics}
        if self.metric not in metrics:
            hint = did_you_mean(self.metric, metrics)
            raise FedapmError(f"EarlyStopping: the run has no metric {self.metric!r}; {hint}")
        if metrics[self.metric].data == "test" and not problem.federation.validation:
            raise FedapmError(
                f"EarlyStopping: there is no validation data for {self.metric}; set a share of the training data for "
                "it, as in train(..., validation=0.2), or use federation.for_validation(0.2, seed=0)."
            )
        self._reset(metrics[self.metric])

    def on_resume(self, records: Sequence[RoundRecord]) -> None:
        """Count the evaluations of earlier rounds."""
        for record in records:
            self._count(record)

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Count an evaluation."""
        del state, seconds
        self._count(record)

    def _reset(self, metric: Metric | None) -> None:
        self._sign = -1.0 if metric is not None and not metric.higher_is_better else 1.0
        self._best, self._best_round, self._waited = -math.inf, 0, 0

    def _count(self, record: RoundRecord) -> None:
        if not record["evaluations"]:
            return
        summary = next(iter(record["evaluations"].values())).get(self.metric)
        score = self._sign * summary["mean"] if summary is not None else -math.inf
        if score > self._best + self.min_delta:
            self._best, self._best_round, self._waited = score, record["round"], 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            raise StopRun(
                f"{self.metric} has not improved for {self.patience} evaluations; the best was "
                f"{self._sign * self._best:.4g} after round {self._best_round}"
            )
