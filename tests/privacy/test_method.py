"""Bounded messages, noised sums, and a run that ends at its budget."""

import json
import math

import pytest
import torch

from fedapm.algorithms import METHODS, PRESETS
from fedapm.core.algorithm import NUMBERS, Aggregate, State
from fedapm.core.vec import Vec, mean
from fedapm.experiments.settings import Experiment
from fedapm.flower.settings import deployment
from fedapm.privacy import PrivacySettings, Private, gaussian_epsilon, private
from fedapm.privacy.accountant import Accountant
from fedapm.privacy.noise import system_noise
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.sampling import Sampling
from fedapm.uploads import UploadSettings
from tests.helpers.cli import fedapm
from tests.helpers.running import play
from tests.helpers.unit import refused
from tests.uploads.small import CLIENTS, SENDING, problem_of, run, stopped_and_resumed

CARRYING = sorted(set(SENDING) - {"scaffold"})


def protecting(
    name: str, upload: dict | None = None, options: dict | None = None, fraction: float = 0.5, **settings
) -> Private:
    method = (METHODS | PRESETS)[name](**(options or {}))
    table = PrivacySettings(**({"noise": "keyed", "clip": 0.02} | settings))

    def draw(m: int, round: int) -> list[int]:
        return Sampling(0.5).draw(m, 0, round)

    return private(method, table, UploadSettings(**(upload or {})), draw, 0, uniform=True, fraction=fraction)


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(v.equal(b[k]) if isinstance(v, Vec) else v == b[k] for k, v in a.items())


@pytest.mark.parametrize("name", CARRYING)
def test_no_message_is_longer_than_allowed(name):
    method = protecting(name)
    problem = problem_of(method)
    engine, seen = SequentialEngine(problem, method), []
    original = method.method.client_update

    def watched(broadcast, state, task):
        update = original(broadcast, state, task)
        upload = update.upload
        seen.append(max(v.norm() / upload.unit for n, v in upload.sums.items() if n != NUMBERS))
        return update

    object.__setattr__(method.method, "client_update", watched)
    play(problem, method, Schedule(3, Sampling(0.5), 10**9), engine=engine)
    assert len(seen) == 9
    assert max(seen) <= 0.02 * (1 + 1e-9)
    assert max(seen) > 0.0199


@pytest.mark.parametrize("name", ["fedapm", "fedapm-paper", "fedavg", "lp-proj"])
@pytest.mark.parametrize("noise", ["keyed", "system"])
def test_the_noise_on_a_sum_is_what_the_accountant_assumes(name, noise):
    method = protecting(name, noise=noise, noise_multiplier=1.5)
    problem = problem_of(method)
    server = method.server_init(problem.u0)
    engine = SequentialEngine(problem, method)
    total = engine.run_round(1, [0, 1, 2], method.broadcast(server)).total
    vector = next(n for n in total.sums if n != NUMBERS)
    noised = []

    def watched(state, given, m):
        noised.append(given.sums[vector] - total.sums[vector])
        return state

    object.__setattr__(method.method, "server_update", watched)
    for releases in range(40):
        method.server_update(server.replace(releases=float(releases)), total, CLIENTS)
    draws = torch.cat([t.flatten() for noise in noised for t in noise.values()]) / total.unit
    assert draws.std().item() == pytest.approx(1.5 * 0.02, rel=6 / math.sqrt(2 * len(draws)))
    assert abs(draws.mean().item()) < 6 * 1.5 * 0.02 / math.sqrt(len(draws))
    # no two rounds have the same
    assert len({float(next(iter(n.values())).flatten()[0]) for n in noised}) == 40


def test_noise_of_the_system_is_normal_and_never_the_same():
    like = Vec({"w": torch.zeros(200, 100, dtype=torch.float64)})
    first, second = (system_noise(like, 2.0)["w"].flatten() for _ in range(2))
    assert not first.equal(second)
    within = [float((first.abs() < 2.0 * k).double().mean()) for k in (1, 2, 3)]
    assert within == pytest.approx([0.6827, 0.9545, 0.9973], abs=0.015)
    assert abs(float((first * second).mean())) < 6 * 4 / math.sqrt(len(first))


def test_without_noise_the_sum_is_exact():
    method = protecting("fedapm", clip=1e6, noise_multiplier=1e-30, delta=0.5)
    plain, _ = run((METHODS)["fedapm"](), 3)
    noised, _ = run(method, 3)
    assert (plain.server.u - noised.server.u).norm() < 1e-9


def test_noise_adds_up_in_the_mean_of_all_and_no_client_corrects_it():
    """On messages that are zero ū is a random walk: after T rounds its variance is T·(σS/m)²."""
    method = protecting("fedapm", options={"server": "all", "rho": 1.0}, noise_multiplier=2.0, clip=0.5)
    u0 = Vec({"w": torch.zeros(4000, dtype=torch.float64)})
    server = method.server_init(u0)
    for round in range(1, 26):
        server = method.server_update(server, Aggregate({"change": u0}, 3.0, 3), 10)
        expected = round * (2.0 * 0.5 / 10) ** 2
        assert server.u["w"].var().item() == pytest.approx(expected, rel=6 * math.sqrt(2 / 4000))


def test_a_tree_takes_most_of_the_noise_back():
    """The same walk with a tree: the variance is (σS/m)² times the number of ones in T, in the units of the model."""
    options = {"server": "all", "rho": 1.0}
    method = protecting("fedapm", options=options, noise_multiplier=2.0, clip=0.5, correlation="tree")
    u0 = Vec({"w": torch.zeros(4000, dtype=torch.float64)})
    server = method.server_init(u0)
    for round in range(1, 26):
        server = method.server_update(server, Aggregate({"change": u0}, 3.0, 3), 10)
        expected = round.bit_count() * (2.0 * 0.5 / 10) ** 2
        assert server.u["w"].var().item() == pytest.approx(expected, rel=6 * math.sqrt(2 / 4000))
        assert len([name for name in server if name.startswith("noise_of_")]) == round.bit_count()
    assert not any(name.startswith("noise_of_") for name in method.broadcast(server))


def test_a_tree_pays_where_clients_take_part_seldom():
    """What is left of noise after 1000 rounds at the same ε: clients take part once each, or one of them always."""

    def left(draw, tree: bool) -> float:
        accountant = Accountant(1.0, 1e-5, draw, tree)
        most = max(round.bit_count() for round in range(1, 1001)) if tree else 1000
        return accountant.sensitivity(1000, 1000) * math.sqrt(most)

    once, always = (lambda m, round: [(round - 1) % m]), (lambda m, round: [7])
    assert left(once, tree=True) < left(once, tree=False) / 3
    assert left(always, tree=True) > left(always, tree=False)


def test_a_tree_goes_on_to_the_bit(tmp_path):
    method = protecting("fedavg", correlation="tree")
    whole, _ = run(method, 6)
    resumed = stopped_and_resumed(method, 3, 6, tmp_path)
    assert same(whole.server, resumed.server)


def test_epsilon_is_recorded_and_grows_with_the_rounds_of_one_client():
    _, records = run(protecting("fedapm", noise_multiplier=3.0), 6)
    spent = [record["server"]["epsilon"] for record in records[1:]]
    counts = [0] * CLIENTS
    for record, epsilon in zip(records[1:], spent, strict=True):
        for k in record["selected"]:
            counts[k] += 1
        assert epsilon == gaussian_epsilon(math.sqrt(max(counts)) / 3.0, 1e-5)
    assert spent == sorted(spent)
    assert [record["server"]["releases"] for record in records[1:]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["fedapm", "fedavg"])
def test_a_run_ends_at_its_budget_with_an_evaluation(name):
    method = protecting(name, noise_multiplier=3.0, epsilon=2.5)
    end, records = run(method, 30)
    last = records[-1]["round"]
    assert 1 < last < 30
    assert end.state.stopped.startswith("the privacy budget is spent")
    assert records[-1]["evaluations"] is not None
    assert records[-1]["server"]["epsilon"] <= 2.5 < method.accountant.epsilon(CLIENTS, last + 1)


def test_engines_agree_and_a_run_goes_on_to_the_bit(tmp_path):
    method = protecting("fedapm", {"compress": "top-k"})
    one, records = run(method, 4)
    many, others = run(method, 4, kind=lambda problem, method: ProcessEngine(problem, method, 2))
    assert same(one.server, many.server)
    assert records == others
    side, _ = run(method, 4, kind=VectorizedEngine)
    assert (one.server.u - side.server.u).norm() < 1e-8
    resumed = stopped_and_resumed(method, 2, 4, tmp_path)
    assert same(one.server, resumed.server)


def test_what_clients_keep_stays_what_the_server_was_told_but_for_the_noise():
    method = protecting("fedapm", {"compress": "top-k"}, noise_multiplier=1e-12, delta=0.5)
    end, _ = run(method, 10)
    kept = mean(end.store.get(k).state.pi for k in range(CLIENTS))
    assert (end.server.pi - kept).norm() < 1e-9


def test_who_diverges_sends_zeros_and_is_not_told_from_others():
    method = protecting("fedavg")
    problem = problem_of(method)
    far = State(u=problem.u0.map(lambda t: torch.full_like(t, 1e200)))
    for kind in (SequentialEngine, VectorizedEngine):
        result = kind(problem, method).run_round(1, [0, 1], far)
        assert result.good == [0, 1]
        assert result.total["du"].norm() == 0


def test_what_cannot_be_accounted_for_is_refused():
    tables = {"privacy": {"epsilon": 8.0}}
    for more, *mentions in (
        ({"algorithm": {"name": "local"}}, "Local only sends nothing"),
        ({"algorithm": {"name": "scaffold"}}, "SCAFFOLD sends 2 vectors"),
        ({"algorithm": {"rho": "balanced"}}, "balanced", "[privacy]"),
        ({"engine": {"weights": "samples"}}, "engine.weights"),
        ({"upload": {"clip": 1.0}}, "upload.clip", "privacy.clip"),
        ({"upload": {"round_to": "int8"}}, "upload.round_to", "privacy.clip"),
        ({"privacy": {"epsilon": 0.5}}, "privacy.epsilon = 0.5", "4.38"),
        ({"privacy": {"delta": 1.5}}, "privacy.delta", "less than 1"),
        ({"privacy": {"noise": "none"}}, "privacy.noise", "system"),
    ):
        with refused(*mentions):
            Experiment.from_tables(tables | more)
    with refused("on Flower", "[privacy]"):
        deployment({"data": {"name": "digits", "clients": 3}, **tables})


def test_the_command_line_ends_at_the_budget(tmp_path):
    out = tmp_path / "run"
    settings = ["--set", "privacy.epsilon=8", "--set", "privacy.noise_multiplier=2", "--set", "privacy.clip=0.5"]
    shown = fedapm("run", "--data", "digits", "--rounds", "60", *settings, "--out", str(out))
    info = json.loads((out / "run.json").read_text())
    assert info["status"] == "complete"
    assert info["finished"] < 60
    assert info["stopped"].startswith("the privacy budget is spent")
    assert "ε " in shown.err
    last = json.loads((out / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["server"]["epsilon"] <= 8
    assert "[privacy]" in (out / "config.toml").read_text()
