"""A method with a transform: what it sends and keeps, on every engine, and what no method can carry."""

import pytest
import torch

from fedapm.algorithms import METHODS, PRESETS, FedAPM, FedAvg, Local
from fedapm.core.algorithm import NUMBERS, Aggregate, Algorithm, ClientUpdate, State, Upload
from fedapm.core.vec import Vec
from fedapm.experiments.settings import Experiment
from fedapm.simulation.engines.base import client_init
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine, train_client
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.stores.base import ClientState
from fedapm.uploads import Transmitted, UploadSettings, transmitted
from fedapm.uploads.method import UNSENT
from tests.helpers.running import play
from tests.helpers.unit import refused
from tests.uploads.small import CLIENTS, SENDING, TRANSFORMS, problem_of, run, sending, stopped_and_resumed

SOME = ["fedapm", "fedapm-paper", "fedavg", "scaffold"]


def gap(a: Vec, b: Vec) -> float:
    assert a.names == b.names
    return max(float((a[n] - b[n]).abs().max()) for n in a)


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(v.equal(b[k]) if isinstance(v, Vec) else v == b[k] for k, v in a.items())


@pytest.mark.parametrize("name", SENDING)
def test_what_is_withheld_is_kept(name):
    method = sending(name, TRANSFORMS["all"] if name != "scaffold" else TRANSFORMS["top-k"])
    problem = problem_of(method)
    server = method.server_init(problem.u0)
    state = client_init(problem, method)(0)
    withheld = 0.0
    for round in (1, 2, 3):
        broadcast = method.broadcast(server)
        result = train_client(problem, method, 0, state, broadcast, round)
        own = State(**{n: v for n, v in state.state.items() if not n.startswith(UNSENT)})
        meant = train_client(problem, method.plain, 0, ClientState(own, state.buffers), broadcast, round).update
        sent, new = result.update.upload.sums, result.update.state
        for sum_name, vector in meant.upload.sums.items():
            if sum_name == NUMBERS:
                assert sent[sum_name].equal(vector)
                continue
            withheld = max(withheld, gap(sent[sum_name], vector))
            if field := method.told.get(sum_name):
                # the server adds up what this field is
                assert gap(meant.state[field] - own[field], vector) < 1e-12
                assert gap(new[field] - own[field], sent[sum_name]) < 1e-12
            else:
                before, after = state.state[UNSENT + sum_name], new[UNSENT + sum_name]
                assert gap(sent[sum_name] + after, vector + before) < 1e-12
        told = set(method.told.values())
        for field, value in meant.state.items():
            if field not in told and isinstance(value, Vec):
                assert new[field].equal(value), field
        assert result.update.u.equal(meant.u)
        state = ClientState(new, result.buffers)
        server = method.server_update(server, Aggregate.of([result.update.upload]), CLIENTS)
    assert withheld > 1e-4


@pytest.mark.parametrize("name", SOME)
def test_a_bound_that_nothing_reaches_changes_nothing(name):
    plain, _ = run((METHODS | PRESETS)[name](), 3)
    clipped, records = run(sending(name, {"clip": 1e9}) if name != "scaffold" else METHODS[name](), 3)
    if name == "fedapm-paper":  # z_i is added up from its changes, which rounds otherwise
        assert gap(clipped.server.u, plain.server.u) < 1e-12
    else:
        assert same(clipped.server, plain.server)
    assert records[-1]["bytes_up"] == run((METHODS | PRESETS)[name](), 1)[1][-1]["bytes_up"]


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("transform", ["low-rank", "all"])
def test_worker_processes_agree_to_the_bit(name, transform):
    if name == "scaffold":
        transform = "low-rank"
    method = sending(name, TRANSFORMS[transform])
    one, records = run(method, 3)
    many, others = run(method, 3, kind=lambda problem, method: ProcessEngine(problem, method, 2))
    assert records == others
    assert same(one.server, many.server)
    assert all(same(one.store.get(k).state, many.store.get(k).state) for k in range(CLIENTS))


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("transform", ["top-k", "low-rank"])
def test_clients_side_by_side_agree(name, transform):
    method = sending(name, TRANSFORMS[transform], **({"xi": None} if name == "fedapm-paper" else {}))
    problem = problem_of(method, 3)
    engine = VectorizedEngine(problem, method)
    many, others = play(problem, method, Schedule(3, Sampling(0.5), 10**9), engine=engine)
    one, records = run(method, 3)
    assert engine.fallback_reasons == []
    assert [r["bytes_up"] for r in records] == [r["bytes_up"] for r in others]
    for field, vector in one.server.vectors.items():
        assert gap(vector, many.server[field]) < 1e-8
    for k in range(CLIENTS):
        for field, vector in one.store.get(k).state.vectors.items():
            assert gap(vector, many.store.get(k).state[field]) < 1e-8


def test_draws_belong_to_clients_wherever_they_are_computed():
    method = sending("fedavg", TRANSFORMS["int8"])
    problem = problem_of(method)
    engines = VectorizedEngine(problem, method), SequentialEngine(problem, method)
    broadcast = method.broadcast(method.server_init(problem.u0))
    side, single = (engine.run_round(1, [0, 2, 5], broadcast).total["du"] for engine in engines)
    # a last digit may take one number to the next multiple
    assert sum(int((side[n] - single[n]).abs().gt(1e-9).sum()) for n in single) <= 3


@pytest.mark.parametrize("name", ["fedapm", "fedalt"])
def test_a_run_that_was_stopped_goes_on_to_the_bit(name, tmp_path):
    method = sending(name, TRANSFORMS["all"])
    whole, _ = run(method, 6)
    resumed = stopped_and_resumed(method, 3, 6, tmp_path)
    assert same(whole.server, resumed.server)
    assert all(same(whole.store.get(k).state, resumed.store.get(k).state) for k in range(CLIENTS))


def test_bytes_are_those_that_are_sent():
    plain = run(FedAvg(), 1)[1][-1]["bytes_up"]
    numbers = 64 * 16 + 16 + 16 * 8 + 8 + 8 * 10 + 10  # six tensors in double precision
    assert plain == 3 * (8 * numbers + 8)
    assert run(sending("fedavg", {"round_to": "int8"}), 1)[1][-1]["bytes_up"] == 3 * (numbers + 6 * 4 + 8)
    assert run(sending("fedavg", {"round_to": "bf16"}), 1)[1][-1]["bytes_up"] == 3 * (2 * numbers + 8)
    kept = -(-numbers // 10)
    few = run(sending("fedavg", {"compress": "top-k", "round_to": "int8"}), 1)[1][-1]["bytes_up"]
    assert few == 3 * (kept + 4 + -(-numbers // 8) + 8)


class Silent(Algorithm):
    """A method that says nothing of its messages."""

    name, label, scope = "silent", "Silent", "whole"
    personal = sends = evaluates = "nothing"

    def server_init(self, u0):
        return State(u=u0)

    def client_init(self, u0, v0):
        return State()

    def client_update(self, broadcast, state, task):
        return ClientUpdate(Upload({"x": broadcast.u}), state, broadcast.u)

    def server_update(self, state, total, m):
        return state

    def client_model(self, broadcast, state, view="model"):
        return broadcast.u, Vec()


class HalfSilent(Silent):
    """One that says it of another message."""

    def averaged(self, u0):
        return {"y": u0}


def test_what_a_method_cannot_carry_is_refused():
    int8 = UploadSettings(round_to="int8")
    with refused("Local only sends nothing", "[upload]"):
        transmitted(Local(), int8)
    with refused("Silent does not say", "told, averaged"):
        transmitted(Silent(), int8)
    with refused("SCAFFOLD sends 2 vectors", "upload.clip"):
        sending("scaffold", {"clip": 1.0})
    with refused("Local only", "[upload]"):
        Experiment.from_tables({"algorithm": {"name": "local"}, "upload": {"round_to": "int8"}})
    method = transmitted(HalfSilent(), int8)
    problem = problem_of(method)
    with refused("Silent does not say", "'x'"):
        train_client(problem, method, 0, client_init(problem, method)(0), State(u=problem.u0), 1)


def test_settings_that_contradict_each_other_are_refused():
    for upload, *mentions in (
        ({"keep": 0.1}, "upload.keep", "top-k"),
        ({"rank": 2, "compress": "top-k"}, "upload.rank", "low-rank"),
        ({"keep": 0.0, "compress": "top-k"}, "upload.keep", "greater than 0"),
        ({"clip": -1.0}, "upload.clip", "greater than 0"),
        ({"round_to": "int4"}, "upload.round_to", "int4"),
        ({"compres": "top-k"}, "upload.compres", "compress"),
    ):
        with refused(*mentions):
            Experiment.from_tables({"upload": upload})


def test_nothing_stands_in_between_where_nothing_is_set():
    experiment = Experiment.from_tables({"upload": {}})
    assert experiment.method is experiment.algorithm
    assert "upload" not in experiment.tables()
    set_ = Experiment.from_tables({"upload": {"round_to": "int8"}})
    assert isinstance(set_.method, Transmitted)
    assert set_.tables()["upload"] == {"round_to": "int8"}
    assert set_.method.plain is set_.algorithm
    assert (set_.method.views, set_.method.takes_split()) == (FedAPM.views, True)


def test_what_is_not_finite_is_left_out_and_not_coded():
    method = sending("fedavg", TRANSFORMS["int8"])
    problem = problem_of(method)
    u = problem.u0.map(lambda t: torch.full_like(t, 1e200))
    result = SequentialEngine(problem, method).run_round(1, [0, 1], State(u=u))
    assert not result.good
    side = VectorizedEngine(problem, method).run_round(1, [0, 1], State(u=u))
    assert not side.good
