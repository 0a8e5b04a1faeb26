"""What the scores of a search come to: who goes on, who is chosen, and a row for each candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedapm.core.candidates import SplitCandidate
from fedapm.report.split.search import Gap, SplitRow
from fedapm.tuning.split.ladder import Rung
from fedapm.tuning.split.scores import Score, gap, mean, table

Scores = Mapping[tuple[int, int, int], Score]
"""By the candidate's number, the round and the seed."""
EQUAL = 1e-9
"""A difference that comes from rounding."""
SIMPLEST = 0
"""The number of the candidate that shares everything. Those with more personal parameters have higher numbers."""


@dataclass(frozen=True)
class Outcome:
    """What a search came to."""

    rows: tuple[SplitRow, ...]
    chosen: SplitRow
    best: SplitRow
    """The one with the highest score on the last rung. The chosen one is as good, but for chance."""
    lead: Gap | None
    """How far the chosen one is above sharing everything; None where it is that itself, or that diverged."""


@dataclass(frozen=True)
class Standings:
    """The scores of a search, on any rung."""

    scores: Scores
    sign: int
    """What turns the metric into a score of which more is better."""
    rule: str = "simplest"
    """How far behind the best a simpler candidate may be, as in :class:`fedapm.tuning.split.options.SplitOptions`."""

    def ranked(self, candidates: Sequence[int], rung: Rung) -> list[int]:
        """The candidates whose runs did not diverge, the best first; of equal ones the simpler first."""
        values = {k: self._values(k, rung) for k in candidates if not self._failed(k, rung)}
        return sorted(values, key=lambda k: (-mean(values[k]), k))

    def kept(self, candidates: Sequence[int], rung: Rung, count: int) -> list[int]:
        """Those that go on: the best, and always the one that shares everything, unless it diverged."""
        good = self.ranked(candidates, rung)
        kept = {*good[:count]}
        if SIMPLEST in good and SIMPLEST not in kept:
            kept = {*good[: count - 1], SIMPLEST}
        return sorted(kept)

    def choose(self, finalists: Sequence[int], rung: Rung) -> int:
        """The simplest of the candidates that are as good as the best, but for chance.

        Args:
            finalists: The candidates on the last rung.
            rung: The last rung.
        """
        good = self.ranked(finalists, rung)
        behind = {k: self._gap(good[0], k, rung) for k in good}
        if self.rule == "one-se":
            return min(k for k, gap in behind.items() if gap.mean <= max(gap.error, EQUAL))
        return min(k for k, gap in behind.items() if not gap.clear)

    def outcome(self, candidates: Sequence[SplitCandidate], climbed: Sequence[tuple[Rung, Sequence[int]]]) -> Outcome:
        """Everything that was found.

        Args:
            candidates: All candidates.
            climbed: The rungs with the candidates that stood on them.
        """
        last, finalists = climbed[-1]
        chosen, best = self.choose(finalists, last), self.ranked(finalists, last)[0]
        rows = tuple(self._row(k, candidate, climbed, chosen) for k, candidate in enumerate(candidates))
        compared = chosen != SIMPLEST and SIMPLEST in self.ranked(finalists, last)
        lead = self._gap(chosen, SIMPLEST, last) if compared else None
        return Outcome(rows, rows[chosen], rows[best], lead)

    def _row(
        self, k: int, candidate: SplitCandidate, climbed: Sequence[tuple[Rung, Sequence[int]]], chosen: int
    ) -> SplitRow:
        stood = [(rung, on) for rung, on in climbed if k in on]
        good = [(rung, on) for rung, on in stood if not self._failed(k, rung)]
        behind = self._gap(self.ranked(good[-1][1], good[-1][0])[0], k, good[-1][0]) if good else None
        verdict = "dropped"
        if k == chosen:
            verdict = "chosen"
        elif behind is None or len(good) < len(stood):
            verdict = "diverged"
        elif len(stood) == len(climbed):
            verdict = "worse" if behind.clear else "as good"
        history = tuple((rung.rounds, self.sign * mean(self._values(k, rung))) for rung, _ in good)
        return SplitRow(
            candidate.name,
            candidate.personal,
            candidate.shared,
            candidate.share,
            verdict,
            stood[-1][0].rounds,
            history[-1][1] if verdict != "diverged" else None,
            behind if verdict != "diverged" else None,
            max(score.bytes for (number, *_), score in self.scores.items() if number == k),
            history,
        )

    def _gap(self, left: int, right: int, rung: Rung) -> Gap:
        return gap(self._values(left, rung), self._values(right, rung))

    def _values(self, candidate: int, rung: Rung) -> np.ndarray[Any, Any]:
        return table([self.scores[candidate, rung.rounds, seed] for seed in rung.seeds], self.sign)

    def _failed(self, candidate: int, rung: Rung) -> bool:
        return any(self.scores[candidate, rung.rounds, seed].values is None for seed in rung.seeds)
