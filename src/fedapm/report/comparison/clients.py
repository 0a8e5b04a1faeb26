"""Each client by itself: what it reaches with each method, and whether joining was worth it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedapm.report.comparison.columns import Column
from fedapm.report.comparison.series import Series, client_scores
from fedapm.runs.records import Run

Scores = list[float | None]


@dataclass(frozen=True)
class AgainstAlone:
    """A method beside training alone, client by client in the same seed.

    The counts are means over seeds, so they need not be whole numbers.
    """

    gains: Scores
    better: float
    equal: float
    worse: float
    seeds: int

    @property
    def mean(self) -> float | None:
        """The mean gain over clients."""
        return _mean(self.gains)

    @property
    def least(self) -> float | None:
        """The gain of the client that fares worst."""
        return min((gain for gain in self.gains if gain is not None), default=None)


@dataclass(frozen=True)
class ClientRow:
    """The clients of one series: their scores averaged over seeds, and the comparison where there is one."""

    series: Series
    scores: Scores
    every_score: list[float]
    """All clients of all seeds, for the spread that an average over seeds would hide."""
    against_alone: AgainstAlone | None


@dataclass(frozen=True)
class ClientScores:
    """Every client of every series in the order to show them, the weakest (alone) first."""

    column: Column
    ids: list[str]
    rows: list[ClientRow]
    alone: ClientRow | None
    same_clients_each_seed: bool
    unmatched: list[str]
    """Series of which some or all runs have other clients and therefore no place here."""


def client_table(series: Sequence[Series], column: Column) -> ClientScores | None:
    """Per-client scores of all series; None where no run has any.

    Clients are matched by their ids; runs with other clients than the first run are left out.
    """
    found = [(one, run) for one in series for run in one.group.runs if _scores(one, run, column)]
    if not found:
        return None
    reference = _ids(found[0][1])
    alone = next((one for one in series if one.alone), None)
    matching: dict[str, dict[int, Scores]] = {one.name: {} for one in series}
    for one, run in found:
        if _ids(run) == reference:
            matching[one.name][run.seed] = _scores(one, run, column)
    base = matching[alone.name] if alone else {}
    rows = [_row(one, matching[one.name], base, column) for one in series if matching[one.name]]
    alone_row = next((row for row in rows if row.series == alone), None)
    order = _order(alone_row.scores if alone_row else _over_seeds([row.scores for row in rows]), column)
    descriptions = [run.info["clients"] for _, run in found if _ids(run) == reference]
    rows = [_reordered(row, order) for row in rows]
    return ClientScores(
        column=column,
        ids=[reference[i] for i in order],
        rows=[row for row in rows if row.series != alone],
        alone=next((row for row in rows if row.series == alone), None),
        same_clients_each_seed=all(clients == descriptions[0] for clients in descriptions),
        unmatched=sorted({one.name for one, run in found if _ids(run) != reference}),
    )


def _row(series: Series, by_seed: dict[int, Scores], base: dict[int, Scores], column: Column) -> ClientRow:
    return ClientRow(
        series,
        scores=_over_seeds(list(by_seed.values())),
        every_score=[score for scores in by_seed.values() for score in scores if score is not None],
        against_alone=None if series.alone else _compare(by_seed, base, column),
    )


def _compare(by_seed: dict[int, Scores], base: dict[int, Scores], column: Column) -> AgainstAlone | None:
    seeds = sorted(by_seed.keys() & base.keys())
    if not seeds:
        return None
    gains = [[_gain(a, b, column) for a, b in zip(by_seed[s], base[s], strict=True)] for s in seeds]
    there = [[gain for gain in row if gain is not None] for row in gains]
    return AgainstAlone(
        gains=_over_seeds(gains),
        better=statistics.fmean(sum(gain > 0 for gain in row) for row in there),
        equal=statistics.fmean(sum(gain == 0 for gain in row) for row in there),
        worse=statistics.fmean(sum(gain < 0 for gain in row) for row in there),
        seeds=len(seeds),
    )


def _gain(value: float | None, alone: float | None, column: Column) -> float | None:
    if value is None or alone is None:
        return None
    gain = value - alone if column.higher_is_better else alone - value
    return 0.0 if abs(gain) <= 1e-12 else gain


def _scores(series: Series, run: Run, column: Column) -> Scores:
    scores = client_scores(series.last(run), column.field)
    return scores if len(scores) == len(run.info["clients"]) and any(s is not None for s in scores) else []


def _ids(run: Run) -> list[str]:
    clients: list[dict[str, Any]] = run.info["clients"]
    return [str(client.get("id", position)) for position, client in enumerate(clients)]


def _over_seeds(rows: list[Scores]) -> Scores:
    return [_mean(list(column)) for column in zip(*rows, strict=True)]


def _mean(values: Scores) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.fmean(there) if there else None


def _order(scores: Scores, column: Column) -> list[int]:
    sign = 1 if column.higher_is_better else -1
    values = [float("inf") if score is None else sign * score for score in scores]
    return sorted(range(len(scores)), key=lambda i: (values[i], i))


def _reordered(row: ClientRow, order: list[int]) -> ClientRow:
    against = row.against_alone
    if against is not None:
        against = replace(against, gains=[against.gains[i] for i in order])
    return replace(row, scores=[row.scores[i] for i in order], against_alone=against)
