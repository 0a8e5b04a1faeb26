"""Several runs, one after the other or side by side: which of them it is, and how long all of them will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta


class Series:
    """How far a series of runs is. Rounds of one kind are taken to last as long as those before them.

    Args:
        runs: What kind each run is, such as its method, and how many rounds are left of it; 0 for a run that is done.
        clock: Gives the time in seconds.
        at_once: How many go side by side.
    """

    def __init__(
        self, runs: Sequence[tuple[str, int]], clock: Callable[[], float] = time.monotonic, at_once: int = 1
    ) -> None:
        self._kinds, self._left = [kind for kind, _ in runs], [left for _, left in runs]
        self._clock, self._at_once = clock, at_once
        self._since: dict[int, float] = {}
        self._seconds: dict[str, float] = {}
        self._rounds: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._kinds)

    def turn(self, position: int) -> Turn:
        """The run at a position, counted from 0, which begins now."""
        self._since[position] = self._clock()
        return Turn(self, position)

    def advance(self, position: int, left: int) -> None:
        """A round of a run is over; so many are left of it."""
        now, kind = self._clock(), self._kinds[position]
        self._seconds[kind] = self._seconds.get(kind, 0.0) + now - self._since[position]
        self._rounds[kind] = self._rounds.get(kind, 0) + 1
        self._left[position], self._since[position] = left, now

    def end(self, position: int) -> None:
        """A run is over, whether all of its rounds were run or not."""
        self._left[position] = 0

    @property
    def seconds_left(self) -> float | None:
        """How long all runs will still take; None before the first round is over."""
        if not self._rounds:
            return None
        mean = sum(self._seconds.values()) / sum(self._rounds.values())
        pace = {kind: self._seconds[kind] / rounds for kind, rounds in self._rounds.items()}
        each = [left * pace.get(kind, mean) for kind, left in zip(self._kinds, self._left, strict=True)]
        # side by side, the last run may be alone
        return max(sum(each) / self._at_once, max(each))


@dataclass(frozen=True)
class Turn:
    """One run of a series."""

    series: Series
    position: int

    @property
    def number(self) -> str:
        """Which run it is, as ``Run 2 of 6``."""
        return f"Run {self.position + 1} of {len(self.series)}"

    @property
    def time_left(self) -> str:
        """How long all runs will still take, as ``0:01:30``; dashes where that is not known yet."""
        seconds = self.series.seconds_left
        return "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))

    def advance(self, left: int) -> None:
        """A round is over; so many are left."""
        self.series.advance(self.position, left)
