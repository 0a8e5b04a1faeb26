"""What the server holds is the mean of what clients keep, whatever is done to messages on their way."""

import pytest

from fedapm.core.vec import Vec, mean
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.sampling import Sampling
from tests.helpers.problems import Watcher
from tests.helpers.running import play
from tests.uploads.small import CLIENTS, TRANSFORMS, problem_of, sending

ROUNDS = 10
HOLDING = {
    "fedapm": {},
    "fedapm, κ": {"kappa": 0.8, "theta": 1.0},
    "fedapm, balanced": {"rho": "balanced"},
    "fedapm, all": {"server": "all"},
    "fedapm-paper": {"max_epochs": 2},
    "fedadmm": {},
    "fedadmm, all": {"server": "all", "rho": 0.1},
    "scaffold": {},
}
"""Methods whose servers hold the mean of something that clients keep."""


def held_and_kept(method, server, states) -> tuple[Vec, Vec]:
    """ū or H or c, and the mean of all z̃_i or π_i or c_i."""
    if method.name == "scaffold":
        return server.c, mean(s.c for s in states)
    if method.plain.server == "all":
        return server.u, mean(s.z for s in states)
    return server.pi, mean(s.pi for s in states)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("which", HOLDING)
def test_the_server_holds_the_mean_of_what_clients_were_left_with(which, transform):
    settings = TRANSFORMS[transform]
    if which == "scaffold":
        settings = {name: value for name, value in settings.items() if name != "clip"} or {"round_to": "int8"}
    method = sending(which.partition(",")[0], settings, **HOLDING[which])
    problem = problem_of(method, ROUNDS)
    engine = SequentialEngine(problem, method)
    seen = []

    class Look(Watcher):
        def on_server_update(self, state, record):
            states = [engine.store.get(k).state for k in range(CLIENTS)]
            held, kept = held_and_kept(method, state.server, states)
            seen.append(max(float((held[n] - kept[n]).abs().max()) for n in held))

    end, _ = play(problem, method, Schedule(ROUNDS, Sampling(0.5), 10**9), [Look([], engine)], engine)
    assert len(seen) == ROUNDS + 1
    assert max(seen) < 1e-12
    held, _ = held_and_kept(method, end.server, [engine.store.get(k).state for k in range(CLIENTS)])
    start = problem.u0 if held.names == problem.u0.names and end.server.u is held else held.zeros()
    assert (held - start).norm() > 1e-3
