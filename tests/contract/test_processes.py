"""Clients in processes: the same results as in one, for every method, and what happens when a worker dies."""

import contextlib
import os
import re
import signal

import pytest
import torch
from torch import nn

from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.data import Federation
from fedapm.errors import FedapmError
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from tests.contract.test_engines import CLIENTS, KINDS, RAGGED, double, gap, made_clients, run
from tests.helpers.running import play


@pytest.fixture(scope="module")
def clients() -> Federation:
    return made_clients(RAGGED)


@pytest.mark.parametrize("name", list(KINDS))
def test_processes_agree_with_one_process_to_the_bit(clients, name):
    alone, expected, _ = run(clients, name, SequentialEngine, rounds=2, epochs=1)
    shared, found, _ = run(clients, name, lambda p, m: ProcessEngine(p, m, 2), rounds=2, epochs=1)
    assert found == expected
    assert gap(shared.server, alone.server) == 0
    assert all(gap(shared.store.get(k).state, alone.store.get(k).state) == 0 for k in range(CLIENTS))


class Deadly(nn.Module):
    """Kills its process in training, once for each file in a folder; a worker takes a file by removing it."""

    def __init__(self, path) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10).double()
        self.path = path

    def forward(self, x):
        if self.training and self.path.exists() and os.getpid() != self.parent:
            for token in sorted(self.path.iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    token.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)


def tokens(path, number: int) -> None:
    path.mkdir(exist_ok=True)
    for k in range(number):
        (path / str(k)).touch()


def deadly(path):
    def make() -> nn.Module:
        module = Deadly(path)
        module.parent = os.getpid()
        return module

    return make


def test_a_worker_that_dies_is_replaced_and_its_client_run_again(clients, tmp_path, caplog):
    count = tmp_path / "deaths"
    tokens(count, 0)
    alone, expected, _ = run(clients, "fedavg", SequentialEngine, rounds=2, model=deadly(count))
    tokens(count, 2)
    shared, found, _ = run(clients, "fedavg", lambda p, m: ProcessEngine(p, m, 2), rounds=2, model=deadly(count))
    assert found == expected
    assert gap(shared.server, alone.server) == 0
    assert not list(count.iterdir())
    assert "SIGKILL" in caplog.text


class Stopping(Deadly):
    """Stops its process instead of killing it."""

    def forward(self, x):
        if self.training and self.path.exists() and os.getpid() != self.parent:
            for token in sorted(self.path.iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    token.unlink()
                    os.kill(os.getpid(), signal.SIGSTOP)
        return self.inner(x)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes where Linux lists them")  # noqa: PTH110
def test_a_worker_that_stands_still_is_replaced_and_said(clients, tmp_path, caplog):
    count = tmp_path / "stops"

    def make() -> nn.Module:
        module = Stopping(count)
        module.parent = os.getpid()
        return module

    tokens(count, 0)
    _, expected, _ = run(clients, "fedavg", SequentialEngine, rounds=1, model=make)
    tokens(count, 1)
    engine = lambda p, m: ProcessEngine(p, m, 2, patience=0.5)  # noqa: E731
    _, found, _ = run(clients, "fedavg", engine, rounds=1, model=make)
    assert found == expected
    assert "has not computed for 0.5 s" in caplog.text


def test_a_client_that_always_kills_its_worker_is_named(clients, tmp_path):
    count = tmp_path / "deaths"
    tokens(count, 50)
    with pytest.raises(FedapmError, match=r"client \d+ was killed by SIGKILL 3 times"):
        run(clients, "fedavg", lambda p, m: ProcessEngine(p, m, 2), rounds=2, model=deadly(count))


def test_workers_end_with_their_engine(clients):
    method = KINDS["fedavg"]()
    problem = Problem(clients, double, SplitRule(preset="output"), adapt=method.adapt)
    engine = ProcessEngine(problem, method, 2)
    play(problem, method, Schedule(1, Sampling(1.0)), engine=engine)
    pids = [w.process.pid for w in engine._workers]
    assert len(pids) == 2
    engine.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_error_in_a_worker_is_the_same_line(clients):
    small = lambda: nn.Linear(64, 3).double()  # noqa: E731
    with pytest.raises(FedapmError, match="3") as alone:
        run(clients, "fedavg", SequentialEngine, rounds=1, model=small, epochs=0)
    with pytest.raises(FedapmError) as shared:
        run(clients, "fedavg", lambda p, m: ProcessEngine(p, m, 2), rounds=1, model=small, epochs=0)
    # which client's turn it was when the first one failed depends on the workers, what is said of it does not
    assert re.sub(r"\d+", "N", str(shared.value)) == re.sub(r"\d+", "N", str(alone.value))


def test_clients_with_networks_of_their_own_run_in_processes(clients):
    def make(client):
        width = 8 + 4 * (int(client.id) % 3)
        return nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 10)).double()

    def each_its_own(engine):
        method = KINDS["fedalt"]()
        problem = Problem(
            clients, make, SplitRule(personal=("2", "4")), adapt=method.adapt, solver=SGDConfig(lr=0.05, batch_size=20)
        )
        runs = engine(problem, method)
        try:
            return play(problem, method, Schedule(3, Sampling(0.5)), engine=runs)
        finally:
            runs.close()

    alone, expected = each_its_own(SequentialEngine)
    shared, found = each_its_own(lambda p, m: ProcessEngine(p, m, 2))
    assert found == expected
    assert gap(shared.server, alone.server) == 0


def test_nobody_waits_for_a_worker_whose_parent_is_gone(clients):
    """A worker notices that nobody will ask it any more, and ends."""
    method = KINDS["fedavg"]()
    problem = Problem(clients, double, SplitRule(preset="output"), adapt=method.adapt)
    engine = ProcessEngine(problem, method, 2)
    play(problem, method, Schedule(1, Sampling(1.0)), engine=engine)
    processes = [w.process for w in engine._workers]
    for worker in engine._workers:
        worker.connection.close()
    for process in processes:
        process.join(20)
        assert process.exitcode == 0
    engine._workers.clear()


def test_one_thread_is_all_a_worker_uses(clients):
    """Results do not depend on how many threads the caller has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _, found, _ = run(clients, "fedavg", lambda p, m: ProcessEngine(p, m, 2), rounds=1)
    finally:
        torch.set_num_threads(before)
    _, expected, _ = run(clients, "fedavg", lambda p, m: ProcessEngine(p, m, 1), rounds=1)
    assert found == expected
