"""The invariant of the protocol, looked at whenever a round's result is in place."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedapm.core.algorithm import State
from fedapm.core.vec import Vec, mean
from fedapm.flower.server.checkpoint import ServerCheckpoints, read_checkpoint
from fedapm.simulation.sampling import Sampling
from tests.flower.cases import CLIENTS, Case, dropped, gap, same

REMEMBERING = ["fedapm", "fedapm-paper", "fedadmm", "scaffold"]
TINY = 1e-12
"""In double precision, what rounding may leave of sums taken in another order."""


def kept_mean(case: Case, server: State, states: dict[str, State]) -> tuple[Vec, Vec]:
    """What the server keeps of all clients, and what it should be by their own acknowledged states."""
    method = case.plan.experiment.algorithm
    if method.name == "scaffold":
        return server.c, mean(s.c for s in states.values())
    if method.server == "all":
        return server.u, mean(s.z for s in states.values())
    return server.pi, mean(s.pi for s in states.values())


@contextmanager
def checked(case: Case, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The invariant, looked at whenever a round's result is in place."""
    original, seen = ServerCheckpoints.save, []

    def save(self, folder, progress, ledger, record):
        original(self, folder, progress, ledger, record)
        saved = read_checkpoint(folder / f"round-{progress.round:06d}.safetensors")
        held, expected = kept_mean(case, progress.server, case.acknowledged(saved))
        assert gap(held, expected) < TINY, f"round {progress.round}"
        seen.append(progress.round)

    with monkeypatch.context() as patch:
        patch.setattr(ServerCheckpoints, "save", save)
        yield seen


def in_round(number: int, *clients: str):
    """Whether a message trains one of these clients in this round."""
    return lambda carried: carried.trains == number and carried.client in clients


def selected(case: Case, number: int) -> list[str]:
    engine = case.plan.experiment.engine
    return [CLIENTS[k] for k in Sampling(engine.fraction).draw(len(CLIENTS), engine.seed, number)]


def assert_as_in_one_process(case: Case, records) -> None:
    progress, expected = case.sequential(dropped(records))
    server = case.saved().state.server
    assert same(server, progress.server)
    for ours, theirs in zip(records, expected, strict=True):
        for view, found in ours["evaluations"].items():
            for score, values in found["per_client"].items():
                pairs = zip(values, theirs["evaluations"][view]["per_client"][score], strict=True)
                # who was not heard has no score; who was has that of this round and no other
                assert all(mine is None or mine == other for mine, other in pairs), (ours["round"], score)
    assert records[-1]["evaluations"] == expected[-1]["evaluations"]
    for k, state in enumerate(case.acknowledged().values()):
        assert same(state, progress.store.get(k).state), CLIENTS[k]
