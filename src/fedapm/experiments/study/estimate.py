"""How long a study takes: a few rounds of each method are measured, the rest is arithmetic."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from fedapm.core.record import RoundRecord
from fedapm.data import Federation
from fedapm.errors import Diverged
from fedapm.experiments import build, compare
from fedapm.experiments.run import execute
from fedapm.experiments.side_by_side import one_process
from fedapm.experiments.study.part import Part, Step
from fedapm.experiments.study.settings import Case
from fedapm.loggers.console import ProgressDisplay
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import MEASURED
from fedapm.simulation.loop import Callback
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.state import RunState

logger = logging.getLogger(__name__)
FEW = 3
"""Clients that are measured; all others are taken to be like them."""
SHORT = 10.0
"""Seconds: where a run of one round takes no longer, it is measured as it is."""
ROUNDS = 4
"""Rounds that are measured then; of small clients the first takes several times as long as those that follow."""


@dataclass(frozen=True)
class Cost:
    """What one method takes on one case, in seconds of a processor."""

    start: float
    """Before the first round."""
    client: float
    """A client's training in a round."""
    evaluation: float
    """All clients, once."""
    closing: float
    """The closing phase, reckoned from its epochs: it trains all clients, and would take longer than the round."""
    clients: int
    """How many there are."""
    evaluate_every: int

    def run(self, rounds: int, cohort: float) -> float:
        """A whole run."""
        trained = rounds * Sampling(cohort).size(self.clients) * self.client
        return self.start + trained + (1 + rounds / self.evaluate_every) * self.evaluation + self.closing


class _Clock(Callback):
    """Takes the processor time of round 0, which is only evaluated, and of the rounds that follow."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def begin(self, *_: object) -> Self:
        """Take the time when everything is ready for round 0."""
        self.at = [time.process_time()]
        return self

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Take the time."""
        del state, record, seconds
        self.at.append(time.process_time())


def measure(part: Part) -> dict[str, Cost]:
    """Run every method of a case a little: a round with a few clients or, where that is quick, some with all of them.

    Args:
        part: The case with any of its cohorts.

    Returns:
        What each method takes; one that diverges in its first round has what it took until then.
    """
    clients, names, costs = part.clients(), part.case.plan.method_names, {}
    with ProgressDisplay() as display:
        for done, name in enumerate(names):
            display(f"{part.case.title}: measuring a few rounds of each method", done, len(names))
            costs[name] = _cost(part, name, clients)
    return costs


def _cost(part: Part, method: str, clients: Federation) -> Cost:
    few = _measured(part, method, clients.first(FEW), 1.0, len(clients))
    # small clients may be computed together, which takes a fraction of the time that they take one by one
    if few.run(1, part.cohort) > SHORT:
        return few
    return _measured(part, method, clients, part.cohort, len(clients), ROUNDS)


def _measured(part: Part, method: str, some: Federation, cohort: float, everybody: int, rounds: int = 1) -> Cost:
    """A few rounds with some clients, and what follows from the fastest.

    Args:
        part: The case.
        method: The method.
        some: Those clients.
        cohort: The share of them that takes part in a round.
        everybody: How many clients the case has.
        rounds: How many rounds.
    """
    # only the last round is evaluated
    engine: dict[str, Any] = {"rounds": rounds, "evaluate_every": rounds, "fraction": cohort}
    (experiment,) = compare.plans(
        [method], part.case.plan.seeds[:1], *part.layers, {"engine": engine | {"final_personal_epochs": 0}}
    )
    began, clock = time.process_time(), _Clock()
    spec = one_process(build.plan(experiment, some))
    try:
        execute(spec, None, progress=False, callbacks=[clock.begin])
    except Diverged as error:
        logger.warning("%s This was only to measure the time.", error)
    at = (clock.at + [time.process_time()] * 3)[: max(3, len(clock.at))]
    evaluation = at[1] - at[0]
    *plain, last = (after - before for before, after in itertools.pairwise(at[1:]))
    client = min(plain or [max(last - evaluation, 0.0)]) / Sampling(cohort).size(len(some))
    own, epochs = part.experiment(method).engine, max(experiment.solver.epochs, 1)
    closes = experiment.algorithm.personal_field is not None
    # a round has two phases of so many epochs for those who have a personal part
    closing = everybody * client * own.final_personal_epochs / (2 * epochs) if closes else 0.0
    evaluations = everybody / len(some) * evaluation
    return Cost(at[0] - began, client, evaluations, closing, everybody, own.evaluate_every)


Costs = Mapping[str, Mapping[str, Cost]]
"""By case, then by method."""


def measured(cases: Sequence[Case], out: Path, root: Path | None, *, keep: bool) -> dict[str, dict[str, Cost]]:
    """What each case takes, as it was measured before or measured now.

    Args:
        cases: The cases.
        out: The folder of the study, which remembers what was measured.
        root: The folder of data sets, where one is given.
        keep: Whether to write down what is measured now.
    """
    path = out / MEASURED
    known = read_json(path) if path.is_file() else {}
    found: dict[str, dict[str, Cost]] = {}
    for case in cases:
        if {*known.get(case.name, {})} == {*case.plan.method_names}:
            found[case.name] = {name: Cost(**cost) for name, cost in known[case.name].items()}
            continue
        found[case.name] = measure(Part(case, min(case.plan.cohorts), out, root))
        known[case.name] = {name: asdict(cost) for name, cost in found[case.name].items()}
        if keep:
            write_json(path, known)
    return found


def seconds(step: Step, part: Part, costs: Mapping[str, Cost]) -> float:
    """What a step takes in all."""
    return sum(step.runs * costs[name].run(step.rounds, part.cohort) for name in step.methods if name in costs)


@dataclass(frozen=True)
class Row:
    """One part of the estimate."""

    part: str
    runs: int
    total: float
    """Seconds of a processor."""
    left: float


def estimate(parts: Sequence[Part], costs: Costs) -> list[Row]:
    """How long each part takes, and how much of it is left."""
    rows = []
    for part in parts:
        steps = list(part.steps())
        each = [seconds(step, part, costs[part.case.name]) for step in steps]
        left = sum(took * (1 - step.done()) for step, took in zip(steps, each, strict=True))
        rows.append(Row(part.title, sum(step.runs * len(step.methods) for step in steps), sum(each), left))
    return rows


def duration(seconds: float) -> str:
    """A time as one says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
