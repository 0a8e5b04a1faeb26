"""A callback can end a run, and early stopping does so when a validation score no longer improves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedapm import EarlyStopping, FedAvg, StopRun
from fedapm.core.record import RoundRecord
from fedapm.simulation.callbacks import History
from fedapm.simulation.engines.base import Resumed
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.loop import Callback, Loop, Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.state import RunState
from tests.helpers.unit import blob_clients, refused, two_layers


class StopAt(Callback):
    """Ends a run after a round."""

    def __init__(self, round: int) -> None:
        self.round, self.ended = round, ""

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        if state.round == self.round:
            raise StopRun("enough")

    def on_run_end(self, state: RunState, status: str) -> None:
        self.ended = f"{status} after {state.round}: {state.stopped}"


def loop(*callbacks: Callback, rounds: int = 5) -> Loop:
    method = FedAvg()
    problem = Problem(blob_clients(), two_layers, adapt=method.adapt)
    return Loop(problem, method, Schedule(rounds, Sampling(1.0)), SequentialEngine(problem, method), callbacks)


def record(round: int, score: float | None, metric: str = "accuracy") -> RoundRecord:
    scores = {metric: {"mean": score}} if score is not None else {}
    return {"round": round, "evaluations": {"model": scores, "other": {metric: {"mean": 0.0}}}}


def stopped_after(stopping: EarlyStopping, scores: list[float | None], metric: str = "accuracy") -> int | None:
    """The round after which these scores stop a run."""
    for round, score in enumerate(scores):
        try:
            stopping.on_resume([record(round, score, metric)])
        except StopRun:
            return round
    return None


def test_a_callback_ends_a_run_and_the_others_still_see_the_round() -> None:
    stop, memory = StopAt(2), History()
    progress = loop(stop, memory).run()
    assert progress.round == 2
    assert progress.stopped == "enough"
    assert [row["round"] for row in memory.records] == [0, 1, 2]
    assert stop.ended == "complete after 2: enough"


def test_a_stopped_run_that_is_resumed_does_not_train_on() -> None:
    progress = loop(StopAt(2)).run()
    memory = History()
    assert loop(memory).run(Resumed(progress)) is progress
    assert memory.records == []


def test_a_criterion_that_is_met_already_stops_a_resumed_run_at_once() -> None:
    memory = History()
    begun = loop(memory, rounds=2).run()
    stopping = EarlyStopping("train_loss", patience=1, min_delta=100.0)
    assert loop(stopping).run(Resumed(begun), memory.records).round == 2


@pytest.mark.parametrize(
    ("options", "scores", "round"),
    [
        ({"patience": 1}, [0.1, 0.2, 0.2], 2),
        ({"patience": 2}, [0.5, 0.4, 0.6, 0.5, 0.6], 4),
        ({"patience": 2}, [0.5, 0.4, 0.6, 0.5, 0.7], None),
        ({"patience": 2, "min_delta": 0.1}, [0.5, 0.55, 0.58], 2),
        ({"patience": 2, "min_delta": 0.1}, [0.5, 0.55, 0.61, 0.62], None),
        ({"patience": 2}, [None, None], 1),
    ],
)
def test_patience_counts_evaluations_without_an_improvement(
    options: dict[str, Any], scores: list[float | None], round: int | None
) -> None:
    assert stopped_after(EarlyStopping(**options), scores) == round


def test_a_loss_improves_by_falling() -> None:
    assert stopped_after(EarlyStopping("test_loss", patience=1), [3.0, 2.0, 1.0, 1.5], "test_loss") == 3


def test_rounds_without_evaluation_do_not_count() -> None:
    stopping = EarlyStopping(patience=1)
    stopping.on_resume([record(0, 0.5), {"round": 1, "evaluations": None}, {"round": 2, "evaluations": None}])
    with pytest.raises(StopRun, match=r"accuracy .* 1 evaluations; the best was 0.5 after round 0"):
        stopping.on_resume([record(3, 0.5)])


@pytest.mark.parametrize(("options", "mentions"), [({"patience": 0}, "patience"), ({"min_delta": -1.0}, "min_delta")])
def test_settings_without_sense_are_refused(options: dict[str, Any], mentions: str) -> None:
    with refused(mentions):
        EarlyStopping(**options)


def test_validation_data_and_the_metric_must_be_there() -> None:
    federation = blob_clients()
    with refused("no validation data", "validation=0.2"):
        EarlyStopping().check(Problem(federation, two_layers))
    EarlyStopping("train_loss").check(Problem(federation, two_layers))
    validated = Problem(federation.for_validation(0.25, seed=0), two_layers)
    EarlyStopping().check(validated)
    with refused("'acuracy'", "'accuracy'"):
        EarlyStopping("acuracy").check(validated)


def test_every_federation_made_of_one_keeps_its_validation_share() -> None:
    assert blob_clients().validation == 0.0
    assert blob_clients().for_validation(0.25, seed=0).with_memory_format(torch.channels_last).validation == 0.25
