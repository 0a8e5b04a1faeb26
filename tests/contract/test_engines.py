"""What every engine promises: the same results as one client after the other, for every method."""

import contextlib
import math
import os
import re
import signal

import pytest
import torch
from torch import nn

from fedapm.algorithms import METHODS, PRESETS
from fedapm.core.algorithm import State
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.core.vec import Vec
from fedapm.data import IID, Dirichlet, Federation
from fedapm.data.sets.digits import federation
from fedapm.errors import FedapmError
from fedapm.models import DigitsNet
from fedapm.simulation import checkpoint
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem, Weighting
from fedapm.simulation.sampling import Sampling
from tests.helpers.running import play

KINDS = METHODS | PRESETS
CLIENTS = 6
TOGETHER = {
    "fedapm", "fedalt", "fedsim", "fedavg", "fedprox", "fedadmm", "ditto", "scaffold", "local", "fedper", "fedrep",
    "lg-fedavg",
}  # fmt: skip
"""Methods whose clients can be trained side by side even where they have different numbers of samples."""


def double(*, dropout: float = 0.0) -> nn.Module:
    """A small network in double precision, so that engines which add up in another order still agree closely."""
    del dropout
    return DigitsNet(width=16, features=8).double()


@pytest.fixture(scope="module", params=["ragged", "even"])
def clients(request) -> Federation:
    rule = Dirichlet(CLIENTS, 1.0, 30) if request.param == "ragged" else IID(CLIENTS)
    made = federation(rule, test_fraction=0.2, seed=0)
    return Federation.from_clients(
        {c.id: (c.train.inputs[0][::5].double(), c.train.targets[::5]) for c in made.clients},
        test={c.id: (c.test.inputs[0][::2].double(), c.test.targets[::2]) for c in made.clients},
    )


def run(clients, name, engine, rounds=10, weights="uniform", model=double, **solver):
    method = KINDS[name]()
    settings = SGDConfig(**({"lr": 0.05, "epochs": 2, "batch_size": 20, "weight_decay": 0.001} | solver))
    rule = SplitRule(preset="output") if model is double else SplitRule()
    problem = Problem(
        clients, model, rule, adapt=method.adapt, solver=settings, weighting=Weighting(weights), rounds=rounds
    )
    runs = engine(problem, method)
    try:
        return *play(problem, method, Schedule(rounds, Sampling(0.5), 5), engine=runs), runs
    finally:
        runs.close()


def gap(a: State, b: State) -> float:
    assert a.keys() == b.keys()
    found = 0.0
    for field, value in a.items():
        other = b[field]
        if isinstance(value, Vec):
            assert value.names == other.names
            found = max([found, *(float((value[n] - other[n]).abs().max()) for n in value if value[n].numel())])
        else:
            found = max(found, abs(value - other))
    return found


@pytest.mark.parametrize("name", list(KINDS))
def test_processes_agree_with_one_process_to_the_bit(clients, name):
    alone, expected, _ = run(clients, name, SequentialEngine, rounds=2, epochs=1)
    shared, found, _ = run(clients, name, lambda p, m: ProcessEngine(p, m, 2), rounds=2, epochs=1)
    assert found == expected
    assert gap(shared.server, alone.server) == 0
    assert all(gap(shared.store.get(k).state, alone.store.get(k).state) == 0 for k in range(CLIENTS))


@pytest.mark.parametrize("name", list(KINDS))
def test_side_by_side_agrees_with_one_by_one(clients, name):
    # the others are run one by one, which more rounds would only do twice
    rounds = 6 if name in TOGETHER else 3
    alone, expected, _ = run(clients, name, SequentialEngine, rounds)
    many, found, engine = run(clients, name, VectorizedEngine, rounds)
    assert gap(many.server, alone.server) < 1e-9
    assert max(gap(many.store.get(k).state, alone.store.get(k).state) for k in range(CLIENTS)) < 1e-9
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["selected"] == theirs["selected"]
        assert ours["dropped"] == theirs["dropped"] == []
        assert ours["total_bytes_up"] == theirs["total_bytes_up"]
        assert ours["total_bytes_down"] == theirs["total_bytes_down"]
        assert ours["drift"] == pytest.approx(theirs["drift"], abs=1e-9)
        assert ours["local"] == pytest.approx(theirs["local"], abs=1e-9)
    if name in TOGETHER:
        assert engine.fallback_reasons == []


@pytest.mark.parametrize("name", ["fedapm", "fedavg", "scaffold"])
def test_in_single_precision_the_difference_stays_below_a_hundred_thousandth(name):
    clients = federation(Dirichlet(CLIENTS, 1.0, 30), test_fraction=0.2, seed=0)
    model = lambda: DigitsNet()  # noqa: E731
    alone, _, _ = run(clients, name, SequentialEngine, model=model)
    many, _, engine = run(clients, name, VectorizedEngine, model=model)
    assert gap(many.server, alone.server) < 1e-5
    assert engine.fallback_reasons == []


@pytest.mark.parametrize("name", ["fedapm", "fedavg", "scaffold", "ditto"])
@pytest.mark.parametrize("extra", [{"momentum": 0.5}, {"batch_size": 0}, {"epochs": 1, "batch_size": 7}])
def test_side_by_side_knows_every_setting_of_the_solver(clients, name, extra):
    alone, _, _ = run(clients, name, SequentialEngine, rounds=3, weights="samples", **extra)
    many, _, engine = run(clients, name, VectorizedEngine, rounds=3, weights="samples", **extra)
    assert engine.fallback_reasons == []
    assert gap(many.server, alone.server) < 1e-9


def test_little_memory_means_fewer_clients_together_and_the_same_results(clients):
    alone, expected, _ = run(clients, "fedapm", SequentialEngine, rounds=3)
    few, found, engine = run(clients, "fedapm", lambda p, m: VectorizedEngine(p, m, memory=1), rounds=3)
    assert engine.fallback_reasons == []
    assert gap(few.server, alone.server) < 1e-9
    assert found[-1]["drift"] == pytest.approx(expected[-1]["drift"], abs=1e-9)


class Curved(nn.Module):
    """A network that is not made of fully connected layers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 36, 10)
        self.double()

    def forward(self, x):
        hidden = self.norm(self.conv(x.view(-1, 1, 8, 8))).relu()
        return self.head(hidden.flatten(1))


def test_any_network_can_be_trained_side_by_side(clients):
    alone, _, _ = run(clients, "fedsim", SequentialEngine, rounds=3, model=Curved)
    many, _, engine = run(clients, "fedsim", VectorizedEngine, rounds=3, model=Curved)
    assert engine.fallback_reasons == []
    assert gap(many.server, alone.server) < 1e-9


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 10))
        self.double()


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))
        self.double()


@pytest.mark.parametrize(("model", "reason"), [(Dropping, "Dropout"), (Normed, "running_mean")])
def test_what_belongs_to_one_client_is_run_one_by_one_and_said(clients, model, reason, caplog):
    caplog.set_level("INFO", "fedapm")
    alone, expected, _ = run(clients, "fedsim", SequentialEngine, rounds=2, model=model)
    many, found, engine = run(clients, "fedsim", VectorizedEngine, rounds=2, model=model)
    assert found == expected
    assert gap(many.server, alone.server) == 0
    assert reason in engine.fallback_reasons[0]
    assert f"one by one, because {engine.fallback_reasons[0]}." in caplog.text


def test_an_l2_term_of_the_personal_part_is_the_same_side_by_side(clients):
    alone, _, _ = run(clients, "fedapm", SequentialEngine, rounds=3, weight_decay_v=0.1)
    many, _, engine = run(clients, "fedapm", VectorizedEngine, rounds=3, weight_decay_v=0.1)
    plain, _, _ = run(clients, "fedapm", SequentialEngine, rounds=3)
    assert engine.fallback_reasons == []
    assert gap(many.server, alone.server) < 1e-9
    assert gap(plain.server, alone.server) > 1e-3, "it does something"


def test_two_l2_terms_at_once_are_run_one_by_one_and_said(clients):
    alone, expected, _ = run(clients, "fedsim", SequentialEngine, rounds=2, weight_decay_v=0.1)
    many, found, engine = run(clients, "fedsim", VectorizedEngine, rounds=2, weight_decay_v=0.1)
    assert [r["selected"] for r in found] == [r["selected"] for r in expected]
    assert gap(many.server, alone.server) == 0
    assert any("L2 term" in reason for reason in engine.fallback_reasons)


def test_a_client_that_diverges_is_left_out_side_by_side_too(clients):
    poisoned = Federation(clients.clients)
    bad = poisoned[2]
    bad.train.inputs[0][0, 0] = math.nan
    try:
        alone, expected, _ = run(poisoned, "fedavg", SequentialEngine, rounds=4)
        many, found, _ = run(poisoned, "fedavg", VectorizedEngine, rounds=4)
    finally:
        bad.train.inputs[0][0, 0] = 0.0
    assert [r["dropped"] for r in found] == [r["dropped"] for r in expected]
    assert any(r["dropped"] == [2] for r in found)
    assert gap(many.server, alone.server) < 1e-9


def test_a_method_that_stacks_mean_nothing_to_is_noticed(clients):
    """Raw tensors of a stack are not a client's; the first round is compared with one client by itself."""
    kind = KINDS["fedsim"]

    class Clipped(kind):
        def client_update(self, broadcast, s, task):
            reply = super().client_update(broadcast, s, task)
            longest = max(float(t.norm()) for t in reply.u.values())
            u = reply.u / longest
            return type(reply)(self.upload(u, broadcast.u, task), reply.state, u)

    KINDS["clipped"] = Clipped
    try:
        alone, expected, _ = run(clients, "clipped", SequentialEngine, rounds=2)
        many, found, engine = run(clients, "clipped", VectorizedEngine, rounds=2)
    finally:
        del KINDS["clipped"]
    # training falls back to one client after the other; evaluation may still differ in its rounding
    assert [row["drift"] for row in found] == [row["drift"] for row in expected]
    assert gap(many.server, alone.server) == 0
    assert any("comes out differently" in reason for reason in engine.fallback_reasons)


def test_a_checkpoint_of_one_engine_is_continued_by_another(clients, tmp_path):
    half, _, _ = run(clients, "fedapm", VectorizedEngine, rounds=2)
    path = checkpoint.save(tmp_path, half.state, half.store)
    method = KINDS["fedapm"]()
    settings = SGDConfig(lr=0.05, epochs=2, batch_size=20, weight_decay=0.001)
    problem = Problem(clients, double, SplitRule(preset="output"), adapt=method.adapt, solver=settings, rounds=4)
    schedule = Schedule(4, Sampling(0.5), 5)
    straight, _, _ = run(clients, "fedapm", SequentialEngine, rounds=4)
    end, _ = play(problem, method, schedule, resume=lambda loop, e: checkpoint.load(path, loop.state, e.store))
    assert gap(end.server, straight.server) < 1e-9


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
