"""How well each class is known, and which classes are taken for which."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedapm.report.comparison.series import Series, tidy
from fedapm.report.numbers import counted, percent
from fedapm.report.page import Section
from fedapm.report.results import Results
from fedapm.runs.records import Run, class_counts

MOST_IN_A_MATRIX = 25
"""Classes; a larger matrix is a list of its most frequent mistakes."""
MOST_MISTAKES = 15
FEW, LETTERS = 10, 40
"""Classes, and letters of their names, up to which the matrix stands beside their scores on a wide screen."""
LEVELS = 10
"""Shades of a matrix, besides none."""


class ClientCounts:
    """How often each class was taken for each with one client's model.

    Args:
        counts: The right class, the class it was taken for, and how often.
    """

    def __init__(self, counts: Sequence[Sequence[int]]) -> None:
        self.pairs = {(a, b): n for a, b, n in counts}
        self.rows: Counter[int] = Counter()
        """How many samples there are of each class."""
        self.columns: Counter[int] = Counter()
        """How many samples are taken for each class."""
        for (a, b), n in self.pairs.items():
            self.rows[a] += n
            self.columns[b] += n


@dataclass(frozen=True)
class ClassScore:
    """One class with one model: means over the clients that have samples of it, then over seeds."""

    name: str
    recall: float | None
    """The share of its samples that are taken for it."""
    precision: float | None
    """The share of what is taken for it that is of it; over the clients where anything is."""
    f1: float | None
    clients: float
    samples: float


@dataclass(frozen=True)
class Confusion:
    """The classes with one model."""

    name: str
    scores: list[ClassScore]
    shares: dict[tuple[int, int], float]
    """The share of a class (first) that is taken for another, a mean over the clients that have it and over seeds."""

    @property
    def mistakes(self) -> list[tuple[str, str, float]]:
        """The most frequent mistakes: the right class, what it is taken for, and how often."""
        wrong = sorted((-share, pair) for pair, share in self.shares.items() if pair[0] != pair[1] and share > 0)
        return [(self.scores[a].name, self.scores[b].name, -share) for share, (a, b) in wrong[:MOST_MISTAKES]]


def confusion(series: Series, names: Sequence[str]) -> Confusion | None:
    """What is known of the classes with one model; None where nothing is."""
    counted_runs = [class_counts(run).get(series.view, []) for run in series.group.runs]
    seeds = [[ClientCounts(client) for client in clients] for clients in counted_runs if any(clients)]
    if not seeds:
        return None
    scores = [_class_score(seeds, number, name) for number, name in enumerate(names)]
    return Confusion(series.name, scores, _shares(seeds))


def class_names(runs: Sequence[Run]) -> list[str]:
    """The names of the classes as the runs know them, or their numbers."""
    info = runs[0].info
    every = (row for run in runs for clients in class_counts(run).values() for client in clients for row in client)
    highest = max((max(right, taken) for right, taken, _ in every), default=-1)
    count = max(int(info.get("classes") or 0), highest + 1)
    names = [tidy(name) for name in info.get("class_names") or ()]
    return [names[k] if k < len(names) else str(k) for k in range(count)]


def section(results: Results) -> Section | None:
    """The section; None where no run counted its classes, or runs do not agree on what they are."""
    known = [run for run in results.runs if class_counts(run)]
    if not known or not results.comparable:
        return None
    names = class_names(known)
    order = {row.label: place for place, row in enumerate(results.rows)}
    models = sorted(results.series, key=lambda model: order.get(model.name, len(order)))
    found = [made for model in models if (made := confusion(model, names)) is not None]
    context = {
        "results": results,
        "found": found,
        "names": names,
        "beside": len(names) <= FEW and sum(map(len, names)) <= LETTERS,
        "matrix": len(names) <= MOST_IN_A_MATRIX,
        "level": lambda share: round(LEVELS * share),
        "percent": lambda share: "–" if share is None else percent(share, 1),
        "whole": lambda share: f"{100 * share:.0f}",
        "count": lambda value: f"{value:,.1f}".removesuffix(".0"),
        "exact": _exact,
    }
    return Section("classes", "Classes", "classes.html.j2", context)


def _exact(confusion: Confusion, right: int, taken: int, share: float) -> str:
    """A cell of the matrix in a sentence."""
    scores = confusion.scores
    clients = counted(round(scores[right].clients), "client")
    return f"{scores[right].name} taken for {scores[taken].name}: {100 * share:.4g}% (mean over {clients})"


def _shares(seeds: Sequence[Sequence[ClientCounts]]) -> dict[tuple[int, int], float]:
    """For each pair that occurs: the mean over the clients that have the class, then over the seeds with any."""
    totals: dict[tuple[int, int], float] = {}
    having = Counter(number for clients in seeds for number in {a for client in clients for a in client.rows})
    for clients in seeds:
        owners = Counter(number for client in clients for number in client.rows)
        for client in clients:
            for (a, b), count in client.pairs.items():
                share = count / client.rows[a] / owners[a] / having[a]
                totals[a, b] = totals.get((a, b), 0.0) + share
    return totals


def _class_score(seeds: Sequence[Sequence[ClientCounts]], k: int, name: str) -> ClassScore:
    having = [[client for client in clients if client.rows[k]] for clients in seeds]
    naming = [[client for client in clients if client.columns[k]] for clients in seeds]
    return ClassScore(
        name,
        recall=_over_seeds([[c.pairs.get((k, k), 0) / c.rows[k] for c in clients] for clients in having]),
        precision=_over_seeds([[c.pairs.get((k, k), 0) / c.columns[k] for c in clients] for clients in naming]),
        f1=_over_seeds(
            [[2 * c.pairs.get((k, k), 0) / (c.rows[k] + c.columns[k]) for c in clients] for clients in having]
        ),
        clients=statistics.fmean(map(len, having)),
        samples=statistics.fmean(sum(c.rows[k] for c in clients) for clients in having),
    )


def _over_seeds(values: Sequence[Sequence[float]]) -> float | None:
    """The mean over clients in each seed, then over the seeds that have one."""
    means = [statistics.fmean(column) for column in values if column]
    return statistics.fmean(means) if means else None
