"""The clients one by one, and what each gains by taking part."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedapm.report.comparison.columns import Column
from fedapm.report.comparison.series import Series, client_scores
from fedapm.report.figures.clients import draw_gains, draw_spread
from fedapm.report.page import Figure, Section
from fedapm.report.results import Results
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
        """The smallest gain of any client."""
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
    """Series with runs that have other clients and are left out here."""


def client_table(series: Sequence[Series], column: Column) -> ClientScores | None:
    """Per-client scores of all series; None where no run has any.

    Clients are matched by their ids; runs with other clients than the first run are left out.
    """
    scored = [(model, run) for model in series for run in model.group.runs if _scores(model, run, column)]
    if not scored:
        return None
    reference = _ids(scored[0][1])
    alone = next((model for model in series if model.alone), None)
    matching: dict[str, dict[int, Scores]] = {model.name: {} for model in series}
    for model, run in scored:
        if _ids(run) == reference:
            matching[model.name][run.seed] = _scores(model, run, column)
    base = matching[alone.name] if alone else {}
    rows = [_row(model, matching[model.name], base, column) for model in series if matching[model.name]]
    alone_row = next((row for row in rows if row.series == alone), None)
    order = _order(alone_row.scores if alone_row else _over_seeds([row.scores for row in rows]), column)
    descriptions = [run.info["clients"] for _, run in scored if _ids(run) == reference]
    rows = [_reordered(row, order) for row in rows]
    return ClientScores(
        column=column,
        ids=[reference[i] for i in order],
        rows=[row for row in rows if row.series != alone],
        alone=next((row for row in rows if row.series == alone), None),
        same_clients_each_seed=all(clients == descriptions[0] for clients in descriptions),
        unmatched=sorted({model.name for model, run in scored if _ids(run) != reference}),
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
    known = [[gain for gain in row if gain is not None] for row in gains]
    return AgainstAlone(
        gains=_over_seeds(gains),
        better=statistics.fmean(sum(gain > 0 for gain in row) for row in known),
        equal=statistics.fmean(sum(gain == 0 for gain in row) for row in known),
        worse=statistics.fmean(sum(gain < 0 for gain in row) for row in known),
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
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _order(scores: Scores, column: Column) -> list[int]:
    sign = 1 if column.higher_is_better else -1
    values = [float("inf") if score is None else sign * score for score in scores]
    return sorted(range(len(scores)), key=lambda i: (values[i], i))


def _reordered(row: ClientRow, order: list[int]) -> ClientRow:
    against = row.against_alone
    if against is not None:
        against = replace(against, gains=[against.gains[i] for i in order])
    return replace(row, scores=[row.scores[i] for i in order], against_alone=against)


def section(results: Results) -> Section:
    """The section."""
    clients = client_table(results.series, results.main)
    context: dict[str, Any] = {"results": results, "clients": clients, "mean_count": _mean_count}
    if clients is not None:
        place = {row.label: position for position, row in enumerate(results.rows)}
        clients = replace(clients, rows=sorted(clients.rows, key=lambda row: place[row.series.name]))
        together = ", all seeds together" if results.several_seeds else ""
        spread = draw_spread(clients, results.by_name, results.styles)
        context |= {
            "clients": clients,
            "gains": _gains(clients, results),
            "spread": Figure(f"{results.main.title} of the clients{together}", spread),
        }
    return Section("clients", "Clients", "clients.html.j2", context)


def _gains(clients: ClientScores, results: Results) -> list[Figure]:
    """What each client gains or loses with each method, all on one scale."""
    compared = [row for row in clients.rows if row.against_alone is not None]
    sizes = [abs(g) for row in compared if row.against_alone for g in row.against_alone.gains if g is not None]
    limit = max(sizes, default=0.0) or 0.01
    return [
        Figure(name, draw_gains(row, clients, limit, results.styles[name], f"gains-{position}"))
        for position, row in enumerate(compared)
        for name in [row.series.name]
    ]


def _mean_count(value: float) -> str:
    """Whole numbers as they are, others with one decimal."""
    return f"{value:.1f}".removesuffix(".0")
