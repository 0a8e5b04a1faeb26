"""The core's rounds, saved before each announcement."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fedapm.core.algorithm import Algorithm
from fedapm.flower.server.checkpoint import ServerCheckpoints
from fedapm.flower.server.engine import FlowerEngine
from fedapm.flower.server.ledger import Ledger
from fedapm.simulation.engines.base import RoundResult
from fedapm.simulation.loop import Callback, Loop, Progress, Record, Schedule
from fedapm.simulation.problem import Problem


class Rounds(Loop):
    """A loop that writes a checkpoint when a round's result is in place and before the next one is announced."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        schedule: Schedule,
        callbacks: Sequence[Callback],
        engine: FlowerEngine,
        ledger: Ledger,
        keeper: ServerCheckpoints,
    ) -> None:
        super().__init__(problem, algorithm, schedule, callbacks, engine, lambda _: ledger)
        self.nodes, self.ledger, self.keeper = engine, ledger, keeper
        self._open: tuple[Progress, Record] | None = None

    def resume(self, progress: Progress, record: Record | None) -> Progress:
        """Go on from a checkpoint; where its round's record is not written yet, that is done first."""
        if record is None:
            return self.run(progress)
        if progress.round == 0:
            return self.run()
        self._open = progress, record
        return self.run(Progress(progress.round - 1, progress.server, progress.store))

    def _round(self, before: Progress) -> None:
        if self._open is None:
            super()._round(before)
            return
        (after, record), self._open = self._open, None
        began = time.perf_counter()
        record["evaluations"] = self._evaluate(after) if self.schedule.evaluates(after.round) else None
        self._measure(record)
        self._finish(after, record, began)

    def _settled(self, after: Progress, record: Record) -> None:
        self.keeper.save(after, self.ledger, record)

    def _record(
        self,
        after: Progress,
        before: Progress | None = None,
        selected: Sequence[int] = (),
        work: RoundResult | None = None,
    ) -> Record:
        record = super()._record(after, before, selected, work)
        self._measure(record)
        return record

    def _measure(self, record: Record) -> None:
        """Drift is measured on the nodes, with the evaluation."""
        if record["evaluations"] is not None and record["round"]:
            record["drift"] = self.nodes.drift()
