"""Turns: how a contender talks to the benchmark. Standard library only, so that every environment has it.

A contender is a process that prepares, says that it is ready and then does one round whenever it is told to. So several
contenders can take turns round by round, and what disturbs the machine for a while disturbs all of them.
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
        self._clock = usage.Clock()

    def ready(self, **facts: Any) -> None:
        """Say that everything is prepared."""
        self._say(facts)

    def wait(self, **others: Callable[[], Facts]) -> None:
        """Return when the next round is to begin; the clock runs from then. Other orders are carried out on the way."""
        while True:
            line = sys.stdin.readline()
            order = json.loads(line) if line else {"do": "stop"}
            if order["do"] == "stop":
                self._answers.close()
                raise SystemExit
            self._clock = usage.Clock()
            if order["do"] == "round":
                return
            self.done(others[order["do"]]())

    def done(self, facts: Facts | Callable[[], Facts]) -> None:
        """Stop the clock and say what was done; facts that take time to find are found when it has stopped."""
        taken = self._clock.read() | {"peak_mib": usage.peak_mib(), "now_mib": usage.now_mib()}
        self._say({**taken, **(facts() if callable(facts) else facts)})

    def _say(self, facts: Facts) -> None:
        print(json.dumps(facts), file=self._answers)
