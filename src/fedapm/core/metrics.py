"""Metrics: how good a client's predictions are. Each is described once, here; everything else iterates over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedapm.core.registry import Registry
from fedapm.errors import FedapmError

Score = float | None
"""A number, or None where the score does not exist for this client."""


class Predictions:
    """A client's network outputs on some samples, and what several metrics need of them.

    Args:
        outputs: What the network gives, one row a sample.
        targets: The right answers.
        loss: The run's loss, a mean over samples.
    """

    def __init__(self, outputs: Tensor, targets: Tensor, loss: Callable[[Any, Tensor], Tensor] | None = None) -> None:
        self.outputs, self.targets, self.loss = outputs, targets, loss

    def __len__(self) -> int:
        return len(self.targets)

    @cached_property
    def logits(self) -> Tensor | None:
        """Scores of each class in double precision; None where there are no samples or they are not finite."""
        logits = self.outputs
        if len(self.targets) == 0:
            return None
        if logits.ndim == 1 or logits.shape[1] == 1:
            # one score a sample is the log-odds of class 1
            logits = torch.stack([torch.zeros_like(logits.reshape(-1)), logits.reshape(-1)], 1)
        if (highest := int(self.targets.max())) >= logits.shape[1]:
            raise FedapmError(
                f"the network gives {logits.shape[1]} scores, but there is a class {highest} ({highest + 1} classes)."
            )
        return logits.detach().cpu().double() if bool(torch.isfinite(logits).all()) else None

    @cached_property
    def truth(self) -> Tensor:
        """The right classes."""
        return self.targets.cpu()

    @cached_property
    def predicted(self) -> Tensor:
        """The class with the highest score, for each sample."""
        assert self.logits is not None
        return self.logits.argmax(1)


class BatchedPredictions:
    """The outputs of several clients' networks side by side, and what several metrics need of them.

    Args:
        logits: Scores of each class, (clients, samples, classes).
        targets: The right classes, (clients, samples).
        present: Which samples are a client's own and not there to fill up its row, (clients, samples).
        losses: Every client's loss, where it is asked for.
    """

    def __init__(
        self, logits: Tensor, targets: Tensor, present: Tensor, losses: Callable[[], list[Score]] | None = None
    ) -> None:
        self.logits, self.targets, self.present, self.losses = logits, targets, present, losses

    @cached_property
    def finite(self) -> Tensor:
        """For each client whether all its scores are finite."""
        return (torch.isfinite(self.logits).all(2) | ~self.present).all(1)

    @cached_property
    def scores(self) -> Tensor:
        """The logits, with zeros where they fill up a row or are not finite, so that they disturb no other client."""
        usable = (self.present & self.finite.unsqueeze(1)).unsqueeze(2)
        return torch.where(usable, self.logits.double(), 0.0)

    @cached_property
    def truth(self) -> Tensor:
        """Which sample is of which class, (clients, samples, classes)."""
        return self._members(self.targets)

    @cached_property
    def claimed(self) -> Tensor:
        """Which sample is taken for which class, (clients, samples, classes)."""
        return self._members(self.scores.argmax(2))

    @cached_property
    def hits(self) -> Tensor:
        """How many samples of each class are taken for it, (clients, classes)."""
        return (self.truth & self.claimed).sum(1).double()

    @cached_property
    def counts(self) -> Tensor:
        """How many samples each client has."""
        return self.present.sum(1)

    def where_finite(self, values: Sequence[Score], otherwise: Score) -> list[Score]:
        """The values of clients with finite scores, and another one for the rest."""
        return [value if good else otherwise for value, good in zip(values, self.finite.tolist(), strict=True)]

    def _members(self, classes: Tensor) -> Tensor:
        every = torch.arange(self.logits.shape[2], device=classes.device)
        return (classes.unsqueeze(2) == every) & self.present.unsqueeze(2)


@dataclass(frozen=True)
class Metric:
    """One score of a client's model: how it is computed, written and compared.

    Engines, records, targets, tuning and reports all read it from here.
    """

    name: str
    """The key in records and settings, such as ``accuracy``."""
    title: str
    """What tables and figures call it."""
    compute: Callable[[Predictions], Score]
    """The score of one client's predictions; None where it does not exist."""
    unit: str = ""
    """"%" for a share of one, which is then shown in percent."""
    higher_is_better: bool = True
    data: Literal["train", "test"] = "test"
    """Which of a client's data it is computed on."""
    classes_only: bool = False
    """Whether it needs classes, and does not exist where targets are quantities."""
    batched: Callable[[BatchedPredictions], list[Score]] | None = None
    """The same for several clients at once; without it they are evaluated one by one."""

    def applies(self, classified: bool) -> bool:
        """Whether it exists for data of this kind."""
        return classified or not self.classes_only

    @property
    def diverged(self) -> float:
        """The score of a model that came out as no number, as far as it can be known."""
        if not self.higher_is_better:
            return math.inf
        return 0.0 if self.unit == "%" else -math.inf

    def describe(self) -> dict[str, Any]:
        """What run.json keeps, so that a report can show a metric it has never heard of."""
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "higher_is_better": self.higher_is_better,
            "data": self.data,
        }


def as_metric(item: Any) -> Metric:
    """A user's metric in the form everything else takes.

    Args:
        item: A :class:`Metric`; a function of (outputs, targets) that gives a number, named after itself; or a
            torchmetrics object, named after its class.

    Returns:
        The metric. A plain function counts as "higher is better"; make a Metric to say otherwise.
    """
    if isinstance(item, Metric):
        return item
    if not callable(item):
        raise FedapmError(f"a metric is a function of (outputs, targets) or a Metric, not {type(item).__name__}.")
    # functools.partial has no name of its own
    name = getattr(item, "__name__", getattr(getattr(item, "func", None), "__name__", type(item).__name__))
    if not name.isidentifier():
        raise FedapmError(f"a metric needs a name of its own, and {name!r} is none; use a def, or a Metric.")
    reset = getattr(item, "reset", None)
    better = getattr(item, "higher_is_better", None)

    def compute(predictions: Predictions) -> Score:
        if len(predictions) == 0:
            return None
        if callable(reset):
            # a torchmetrics object adds up what it sees until it is reset
            reset()
        return float(item(predictions.outputs, predictions.targets))

    title = name.replace("_", " ")
    return Metric(name, title[:1].upper() + title[1:], compute, higher_is_better=better is not False)


def _accuracy(predictions: Predictions) -> Score:
    if predictions.logits is None:
        return 0.0 if len(predictions) else None
    return (predictions.predicted == predictions.truth).double().mean().item()


def _batched_accuracy(predictions: BatchedPredictions) -> list[Score]:
    return predictions.where_finite((predictions.hits.sum(1) / predictions.counts).tolist(), 0.0)


def _f1(predictions: Predictions) -> Score:
    if predictions.logits is None:
        return 0.0 if len(predictions) else None
    return weighted_f1(predictions.predicted, predictions.truth)


def weighted_f1(predicted: Tensor, truth: Tensor) -> float:
    """F1 of each class, weighted by how often the class occurs."""
    size = int(max(predicted.max(), truth.max())) + 1
    support = torch.bincount(truth, minlength=size).double()
    claimed = torch.bincount(predicted, minlength=size).double()
    hits = torch.bincount(truth[predicted == truth], minlength=size).double()
    f1 = 2 * hits / (support + claimed).clamp(min=1)
    return float((f1 * support).sum() / support.sum())


def _batched_f1(predictions: BatchedPredictions) -> list[Score]:
    support = predictions.truth.sum(1).double()
    f1 = 2 * predictions.hits / (support + predictions.claimed.sum(1)).clamp(min=1)
    return predictions.where_finite(((f1 * support).sum(1) / predictions.counts).tolist(), 0.0)


def _auc(predictions: Predictions) -> Score:
    if predictions.logits is None:
        return None
    return one_vs_rest_auc(torch.softmax(predictions.logits, 1).numpy(), predictions.truth.numpy())


def one_vs_rest_auc(scores: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> Score:
    """The mean AUC over the classes that occur in the truth; None where only one class does.

    The area is the chance that a member of the class is ranked above a non-member, ties counting half.
    """
    classes, counts = np.unique(truth, return_counts=True)
    if len(classes) < 2:
        return None
    if not np.isfinite(scores).all():
        return math.nan
    ranks = np.stack([_ranks(column) for column in scores[:, classes].T], axis=1)
    member = truth[:, None] == classes[None, :]
    rank_sums = (ranks * member).sum(0)
    areas = (rank_sums - counts * (counts + 1) / 2) / (counts * (len(truth) - counts))
    return float(areas.mean())


def _ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ranks from 1 on, equals sharing theirs; scipy's take most of a second to import, in every process anew."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    shared: np.ndarray[Any, Any] = count.cumsum() - (count - 1) / 2
    return shared[place]


def _batched_auc(predictions: BatchedPredictions) -> list[Score]:
    truth, present = predictions.truth, predictions.present
    ranks = _batched_ranks(torch.where(present.unsqueeze(2), torch.softmax(predictions.scores, 2), torch.inf))
    members = truth.sum(1).double()
    others = present.sum(1, keepdim=True) - members
    occurs = members > 0
    sums = torch.where(truth, ranks, 0.0).sum(1)
    areas = (sums - members * (members + 1) / 2) / (members * others).clamp(min=1)
    kinds = occurs.sum(1)
    means = torch.where(occurs, areas, 0.0).sum(1) / kinds.clamp(min=1)
    several = [mean if kind > 1 else None for mean, kind in zip(means.tolist(), kinds.tolist(), strict=True)]
    return predictions.where_finite(several, None)


def _batched_ranks(values: Tensor) -> Tensor:
    """The rank of each value among the samples of its client, from 1; those that are equal share their mean rank."""
    columns = values.transpose(1, 2).contiguous()
    ordered = columns.sort(2).values
    below = torch.searchsorted(ordered, columns)
    up_to = torch.searchsorted(ordered, columns, right=True)
    return ((below + up_to + 1).double() / 2).transpose(1, 2)


def _loss(predictions: Predictions) -> Score:
    assert predictions.loss is not None
    return predictions.loss(predictions.outputs, predictions.targets).item() if len(predictions) else None


def _batched_loss(predictions: BatchedPredictions) -> list[Score]:
    assert predictions.losses is not None
    return predictions.losses()


ACCURACY = Metric("accuracy", "Accuracy", _accuracy, "%", classes_only=True, batched=_batched_accuracy)
F1 = Metric("f1", "F1", _f1, "%", classes_only=True, batched=_batched_f1)
AUC = Metric("auc", "AUC", _auc, "%", classes_only=True, batched=_batched_auc)
TRAIN_LOSS = Metric("train_loss", "Training loss", _loss, higher_is_better=False, data="train", batched=_batched_loss)
TEST_LOSS = Metric("test_loss", "Test loss", _loss, higher_is_better=False, batched=_batched_loss)

METRICS: Registry[Metric] = Registry(
    "metric",
    "fedapm.metrics",
    {metric.name: metric for metric in (ACCURACY, F1, AUC, TRAIN_LOSS, TEST_LOSS)},
    lambda name, item: replace(as_metric(item), name=name),
)
"""Every metric that runs compute, in the order of their records, built in or added through ``fedapm.metrics``."""


def distribution(values: Sequence[Score], worst_is_high: bool = False) -> dict[str, float | int] | None:
    """Mean, standard deviation and worst tenth over the clients that have a value."""
    known = sorted((v for v in values if v is not None and math.isfinite(v)), reverse=worst_is_high)
    if not known:
        return None
    worst = known[: max(1, len(known) // 10)]
    return {
        "mean": math.fsum(known) / len(known),
        "std": float(np.std(known)),
        "worst10": math.fsum(worst) / len(worst),
        "clients": len(known),
    }


def summarize(per_client: Sequence[Mapping[str, Score]], metrics: Sequence[Metric] | None = None) -> dict[str, Any]:
    """An evaluation as it is recorded: the distribution of each score, and every client's value.

    Args:
        per_client: One row a client, all with the same names.
        metrics: The metrics of the run, which say whether high is good; the registered ones if not given.

    Returns:
        For each name mean, std, worst10 and clients, and under ``per_client`` all values.
    """
    losses = {m.name for m in (METRICS.values() if metrics is None else metrics) if not m.higher_is_better}
    names = list(per_client[0])
    columns = {n: [_finite(row[n]) for row in per_client] for n in names}
    summary: dict[str, Any] = {n: distribution(columns[n], worst_is_high=n in losses) for n in names}
    return {n: s for n, s in summary.items() if s is not None} | {"per_client": columns}


def _finite(value: Score) -> Score:
    return value if value is not None and math.isfinite(value) else None
