"""Scores of candidates, client by client, and when one is better than another by more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from fedapm.core.metrics import Metric
from fedapm.report.significance import CONFIDENCE
from fedapm.report.split.search import Gap
from fedapm.tuning.scorer import Scorer


@dataclass(frozen=True)
class Score:
    """How one run of a candidate stood after some rounds."""

    values: tuple[float | None, ...] | None
    """The metric of each client on its validation data; None for a client that had not taken part yet. None in place of
    all of them where the run diverged."""
    bytes: float
    """What a client sends and receives in a round."""

    def as_dict(self) -> dict[str, Any]:
        """The score as split.json keeps it."""
        return {"values": None if self.values is None else list(self.values), "bytes": self.bytes}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Score:
        """Read it back."""
        values = content["values"]
        return cls(None if values is None else tuple(values), float(content["bytes"]))


DIVERGED = Score(None, 0.0)


def score_run(records: Sequence[Mapping[str, Any]], metric: Metric) -> Score:
    """The score at the last of these rounds.

    Only clients that have taken part count: until then a client's model is not the method's doing. Who takes part
    depends on the seed alone, so these are the same clients for every candidate.

    Args:
        records: The records of a run, from its beginning.
        metric: What counts.
    """
    # says so where no client has the metric at all
    Scorer(metric.name, "last").score(records[-1])
    evaluation = next(iter(records[-1]["evaluations"].values()))
    values = evaluation["per_client"][metric.name]
    there = {k for record in records for k in record["selected"] if k not in record["dropped"]}
    missing = [values[k] is None for k in there]
    # a client without a score has none under any split, but one without a loss has an infinite one
    if all(missing) or (any(missing) and not metric.higher_is_better):
        return DIVERGED
    messages = sum(len(record["selected"]) for record in records)
    sent = records[-1]["total_bytes_up"] + records[-1]["total_bytes_down"]
    return Score(tuple(v if k in there else None for k, v in enumerate(values)), sent / max(messages, 1))


def table(scores: Sequence[Score], sign: int) -> np.ndarray[Any, Any]:
    """Scores as an array of seeds by clients in which higher is better; not a number where there is no value."""
    rows = [score.values for score in scores if score.values is not None]
    return sign * np.array([[math.nan if v is None else v for v in row] for row in rows], dtype=float)


def mean(values: np.ndarray[Any, Any]) -> float:
    """The mean over clients and seeds."""
    return float(np.nanmean(values))


def gap(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> Gap:
    """How far one candidate is above another, paired by client and seed.

    The standard error allows for both: clients differ whatever the seed, and a seed moves all clients at once.

    Args:
        left: Scores of one candidate, seeds by clients.
        right: Scores of the other at the same round.
    """
    differences = left - right
    there = ~np.isnan(differences)
    count = int(there.sum())
    middle = float(differences[there].mean())
    off = np.where(there, differences - middle, 0.0)
    seeds, clients = int(there.any(1).sum()), int(there.any(0).sum())
    by_client, by_seed = (_variance(off.sum(axis), n, count) for axis, n in ((0, clients), (1, seeds)))
    if by_client is None:
        variance, freedom = by_seed, seeds - 1
    else:
        both = float((off**2).sum()) / count**2
        variance, freedom = max(by_client, by_client + (by_seed if by_seed is not None else both) - both), clients - 1
    if variance is None:
        return Gap(middle, None, None)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return Gap(middle, middle - half, middle + half)


def _variance(sums: np.ndarray[Any, Any], groups: int, count: int) -> float | None:
    """The variance of the mean of ``count`` values whose groups are independent, by the sums of each group."""
    return float((sums**2).sum()) / count**2 * groups / (groups - 1) if groups > 1 else None
