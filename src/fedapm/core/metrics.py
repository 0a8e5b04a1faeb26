"""Scores of one client's predictions, and their distribution over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.errors import FedapmError

Score = float | None
Losses = frozenset({"train_loss", "test_loss"})


def classification(logits: Tensor, targets: Tensor) -> dict[str, Score]:
    """Accuracy, weighted F1 and macro one-vs-rest AUC of some predictions; None where a score does not exist."""
    if len(targets) == 0:
        return {"accuracy": None, "f1": None, "auc": None}
    if logits.ndim == 1 or logits.shape[1] == 1:
        # one score a sample is the log-odds of class 1
        logits = torch.stack([torch.zeros_like(logits.reshape(-1)), logits.reshape(-1)], 1)
    if (highest := int(targets.max())) >= logits.shape[1]:
        raise FedapmError(
            f"the network gives {logits.shape[1]} scores, but there is a class {highest} ({highest + 1} classes)."
        )
    if not bool(torch.isfinite(logits).all()):
        return {"accuracy": 0.0, "f1": 0.0, "auc": None}
    scores, truth = logits.detach().cpu().double(), targets.cpu()
    return {
        "accuracy": (scores.argmax(1) == truth).double().mean().item(),
        "f1": weighted_f1(scores.argmax(1), truth),
        "auc": one_vs_rest_auc(torch.softmax(scores, 1).numpy(), truth.numpy()),
    }


def weighted_f1(predicted: Tensor, truth: Tensor) -> float:
    """F1 of each class, weighted by how often the class occurs."""
    size = int(max(predicted.max(), truth.max())) + 1
    support = torch.bincount(truth, minlength=size).double()
    claimed = torch.bincount(predicted, minlength=size).double()
    hits = torch.bincount(truth[predicted == truth], minlength=size).double()
    f1 = 2 * hits / (support + claimed).clamp(min=1)
    return float((f1 * support).sum() / support.sum())


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


def summarize(per_client: Sequence[Mapping[str, Score]]) -> dict[str, Any]:
    """An evaluation as it is recorded: the distribution of each score, and every client's value."""
    names = list(per_client[0])
    columns = {n: [_finite(row[n]) for row in per_client] for n in names}
    summary: dict[str, Any] = {n: distribution(columns[n], worst_is_high=n in Losses) for n in names}
    return {n: s for n, s in summary.items() if s is not None} | {"per_client": columns}


def _finite(value: Score) -> Score:
    return value if value is not None and math.isfinite(value) else None
