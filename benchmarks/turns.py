"""Turns: how a contender talks to the benchmark. Standard library only, so that every environment has it.

A contender is a process that prepares, says that it is ready and then does rounds whenever it is told to. So several
contenders can take turns, and what disturbs the machine for a while disturbs all of them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import usage

Facts = Mapping[str, Any]


class Turns:
    """A contender's side: lines of JSON come in, lines of JSON go out."""

    def __init__(self) -> None:
        # what a library prints must not get between the answers
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._alone = self._turned = False
        self._clock = usage.Clock()
        self._seconds = 0.0
        """How long the turn lasts at least."""
        self._rounds: list[dict[str, float]] = []
        """Those of a turn that is not over."""

    def ready(self, **facts: Any) -> None:
        """Say that everything is prepared."""
        self._say(facts)

    def wait(self, **others: Callable[[], Facts]) -> None:
        """Return when the next round is to begin; the clock runs from then. Other orders are carried out on the way."""
        while not self._rounds:
            line = sys.stdin.readline()
            order = json.loads(line) if line else {"do": "stop"}
            if order["do"] == "stop":
                self._answers.close()
                raise SystemExit
            # workers are started in the first turn
            self._alone = self._turned and not usage.has_children()
            if order["do"] == "round":
                self._seconds = order["seconds"]
                break
            clock = usage.Clock(self._alone)
            facts = others[order["do"]]()
            self._answer([clock.read()], facts)
        self._clock = usage.Clock(self._alone)

    def done(self, steps: int, facts: Callable[[], Facts]) -> None:
        """Stop the clock, and say what was done if the turn is over; facts that take time to find are found then."""
        self._rounds.append(self._clock.read() | {"steps": steps})
        if sum(one["wall"] for one in self._rounds) >= self._seconds:
            rounds, self._rounds, self._turned = self._rounds, [], True
            self._answer(rounds, facts())

    def _answer(self, rounds: list[dict[str, float]], facts: Facts) -> None:
        self._say({"rounds": rounds, "peak_mib": usage.peak_mib(), "now_mib": usage.now_mib(), **facts})

    def _say(self, facts: Facts) -> None:
        print(json.dumps(facts), file=self._answers)
