"""Scores of several clients' predictions at once; the numbers are those of ``metrics.classification``."""

from __future__ import annotations

import torch
from torch import Tensor

from fedapm.core.metrics import Score


def classification(logits: Tensor, targets: Tensor, present: Tensor) -> dict[str, list[Score]]:
    """Accuracy, weighted F1 and macro one-vs-rest AUC of every client.

    ``logits`` are (clients, samples, classes) and ``present`` says which samples are a client's own and not there to
    fill up its row.
    """
    usable = (torch.isfinite(logits).all(2) | ~present).all(1)
    # what fills a row, and the rows of clients without finite scores, must not disturb the others
    scores = torch.where((present & usable.unsqueeze(1)).unsqueeze(2), logits.double(), 0.0)
    counts = present.sum(1)
    predicted = scores.argmax(2)
    truth = _members(targets, present, logits.shape[2])
    claimed = _members(predicted, present, logits.shape[2])
    hits = (truth & claimed).sum(1).double()
    support = truth.sum(1).double()
    accuracy = hits.sum(1) / counts
    f1 = 2 * hits / (support + claimed.sum(1)).clamp(min=1)
    weighted = (f1 * support).sum(1) / counts
    areas = auc(torch.softmax(scores, 2), truth, present)
    fine = usable.tolist()
    return {
        "accuracy": [a if good else 0.0 for a, good in zip(accuracy.tolist(), fine, strict=True)],
        "f1": [f if good else 0.0 for f, good in zip(weighted.tolist(), fine, strict=True)],
        "auc": [a if good else None for a, good in zip(areas, fine, strict=True)],
    }


def auc(scores: Tensor, truth: Tensor, present: Tensor) -> list[Score]:
    """Every client's mean AUC over the classes that occur in its truth; None where only one class does."""
    ranks = _ranks(torch.where(present.unsqueeze(2), scores, torch.inf))
    members = truth.sum(1).double()
    others = present.sum(1, keepdim=True) - members
    occurs = members > 0
    sums = torch.where(truth, ranks, 0.0).sum(1)
    areas = (sums - members * (members + 1) / 2) / (members * others).clamp(min=1)
    kinds = occurs.sum(1)
    means = torch.where(occurs, areas, 0.0).sum(1) / kinds.clamp(min=1)
    return [mean if kind > 1 else None for mean, kind in zip(means.tolist(), kinds.tolist(), strict=True)]


def _members(classes: Tensor, present: Tensor, count: int) -> Tensor:
    """Which sample is of which class, (clients, samples, classes)."""
    return (classes.unsqueeze(2) == torch.arange(count, device=classes.device)) & present.unsqueeze(2)


def _ranks(values: Tensor) -> Tensor:
    """The rank of each value among the samples of its client, from 1; those that are equal share their mean rank."""
    columns = values.transpose(1, 2).contiguous()
    ordered = columns.sort(2).values
    below = torch.searchsorted(ordered, columns)
    up_to = torch.searchsorted(ordered, columns, right=True)
    return ((below + up_to + 1).double() / 2).transpose(1, 2)
