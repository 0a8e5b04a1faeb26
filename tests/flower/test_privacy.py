"""Differential privacy on Flower: what one process gives, whatever is lost; nothing else is told; all is counted."""

import json
import math
from dataclasses import replace

import pytest

from fedapm.core.samples import mean_batches
from fedapm.experiments import build
from fedapm.flower.client import worker
from fedapm.flower.settings import deployment
from fedapm.flower.transport import codec
from fedapm.privacy import STEPS, gaussian_epsilon, protection
from fedapm.runs.files import read_json
from fedapm.runs.records import load_run
from tests.flower.cases import CLIENTS, Case, Partly, dropped, same, tables
from tests.flower.grid import Carried, lost
from tests.flower.invariant import TINY, kept_mean, selected
from tests.flower.test_resume import serve_until_killed
from tests.flower.test_uploads import failing
from tests.helpers.running import play
from tests.helpers.unit import refused

KEYED = {"noise": "keyed", "clip": 0.05, "samples": 40}
SITES = {"level": "sample", "noise": "keyed", "noise_multiplier": 2.0}
WHOLE = {"solver": {"batch_size": 0}}
"""Steps on all samples: ε is the exact one, and opacus is not needed."""
FEW = {"timeout": 2.0, "retries": 0}


def private(folder, method="fedapm", privacy=KEYED, rounds=3, **more) -> Case:
    engine = {"rounds": rounds, "final_personal_epochs": 0, **more.pop("engine", {})}
    return Case.of(folder, method, privacy=privacy, engine=engine, flower=FEW | more.pop("flower", {}), **more)


def alone(case: Case, absent=None):
    """The same in one process, with what [privacy] changes about its problem."""
    problem, experiment = case.problem(), case.plan.experiment
    problem.protection = protection(experiment.privacy, experiment.solver)
    if experiment.privacy.samples is not None:
        problem.mean_batches = mean_batches([experiment.privacy.samples], experiment.solver.batch_size)
    engine = Partly(problem, experiment.method, absent or {})
    schedule = build.schedule(experiment.engine, experiment.privacy)
    return play(problem, experiment.method, schedule, engine=engine)


def assert_states_as_in_one_process(case: Case, records) -> None:
    end, _ = alone(case, dropped(records))
    assert same(case.saved().state.server, end.server)
    for k, state in enumerate(case.acknowledged().values()):
        assert same(state, end.store.get(k).state), CLIENTS[k]


@pytest.mark.parametrize(
    ("name", "privacy", "more"),
    [
        ("fedapm", {"noise_multiplier": 1e-30, "delta": 0.5, "clip": 1e6}, {}),
        ("fedapm", {}, {}),
        ("fedapm-paper", {}, {"algorithm": {"name": "fedapm-paper", "max_epochs": 2}}),
        ("fedalt", {"clip": "adaptive"}, {}),
        ("fedavg", {"correlation": "tree"}, {"upload": {"compress": "top-k"}}),
        ("fedapm", {}, {"upload": {"mask": True, "mask_threshold": 2}, "engine": {"fraction": 1.0}}),
    ],
)
def test_it_is_what_one_process_gives(tmp_path, name, privacy, more):
    """Without noise, or with noise from a key; ε after each round is in the records."""
    case = private(tmp_path, name, KEYED | privacy, **more)
    records = case.serve()
    assert dropped(records) == {}
    assert_states_as_in_one_process(case, records)
    _, expected = alone(case)
    assert [r.get("server") for r in records] == [r.get("server") for r in expected]
    assert records[-1]["server"]["epsilon"] > 0
    assert any("ε" in line for line in case.said)


def test_without_noise_it_is_the_plain_method(tmp_path):
    silent = private(tmp_path / "silent", privacy=KEYED | {"noise_multiplier": 1e-30, "delta": 0.5, "clip": 1e6})
    plain = Case.of(tmp_path / "plain", algorithm={"rho": 1.0, "sigma": 0.1, "theta": 1.0}, engine={"rounds": 3})
    silent = replace(silent, given=silent.given | {"algorithm": plain.given["algorithm"]})
    for case in (silent, plain):
        case.serve()
    assert (silent.saved().state.server.u - plain.saved().state.server.u).norm() < TINY


def test_lost_late_and_repeated_replies(tmp_path):
    case = private(tmp_path, privacy=KEYED | {"noise_multiplier": 1e-30, "delta": 0.5}, rounds=6)
    case.grid.fate, missed = failing(case)
    records = case.serve()
    assert dropped(records) == missed
    assert_states_as_in_one_process(case, records)
    held, expected = kept_mean(case, case.saved().state.server, case.acknowledged())
    assert (held - expected).norm() < TINY


def test_clients_that_are_drawn_secretly(tmp_path):
    pytest.importorskip("opacus")
    case = private(tmp_path, privacy=KEYED | {"sampling": "poisson"}, rounds=3, engine={"fraction": 0.3, "seed": 0})
    records = case.serve()
    drawn = [len(record["selected"]) for record in records[1:]]
    assert 0 in drawn
    assert max(drawn) > 1
    assert case.complete


def test_nothing_else_leaves_a_client(tmp_path):
    case = private(tmp_path, rounds=2, engine={"final_personal_epochs": 1})
    records = case.serve()
    for carried in case.grid.carried:
        note, tensors = carried.answered()
        assert set(note) <= {"protocol", "run", "token", "client", "data", "trained"}
        if "data" in note:
            assert (note["data"]["train"], note["data"]["test"], note["data"]["different"]) == (40, 0, 0)
        if "trained" in note:
            assert note["trained"].keys() == {"round", "finite", "weight", "sums", "log"}
            assert (note["trained"]["weight"], note["trained"]["log"]) == (1.0, [])
        assert all(name.startswith("sums/") for name in tensors)
    for record in records:
        assert record["drift"] is record["local"] is None
        assert not any(any(v is not None for v in column) for column in scores(record).values())
    own = [read_json(path) for path in sorted(case.grid.state.glob("*/*/*/scores.json"))]
    assert len(own) == len(CLIENTS)
    assert all(found["closing_scores"]["model"]["accuracy"] is not None for found in own)
    assert not (case.out / "contributions").exists()


def scores(record) -> dict:
    return record["evaluations"]["model"]["per_client"]


def test_a_nodes_owner_may_let_it_tell_scores(tmp_path):
    case = private(tmp_path, rounds=1)
    case.grid.clients[100]["tell"] = "scores"
    last = case.serve()[-1]
    assert [value is not None for value in scores(last)["accuracy"]] == [True] + [False] * 4


def test_why_work_failed_stays_on_the_node(tmp_path, monkeypatch):
    case = private(tmp_path, rounds=2)
    gone = selected(case, 2)[0]

    def broken(problem, algorithm, client, *rest):
        if problem.federation[0].id == gone and rest[-1] == 2:
            raise ValueError("patient 17 has no age")
        return train_client(problem, algorithm, client, *rest)

    train_client = worker.train_client
    monkeypatch.setattr(worker, "train_client", broken)
    assert dropped(case.serve()) == {2: [CLIENTS.index(gone)]}
    assert "patient" not in json.dumps(case.events())
    assert any("only its node's log says why" in what for _, _, what in case.events())


def test_a_message_longer_than_allowed_counts_as_never_sent(tmp_path):
    case = private(tmp_path, rounds=2)
    bad = selected(case, 2)[0]

    def fate(carried: Carried):
        if carried.trains != 2 or carried.client != bad:
            return None
        note, tensors = carried.answered()
        return [carried.replaced(note, {n: t if t.numel() == 1 else 3 * t + 1 for n, t in tensors.items()})]

    case.grid.fate = fate
    assert dropped(case.serve()) == {2: [CLIENTS.index(bad)]}
    assert any("more than privacy.clip" in what for _, _, what in case.events())


def test_a_run_ends_at_its_budget_with_models_and_does_not_begin_again(tmp_path):
    case = private(tmp_path, privacy=KEYED | {"noise_multiplier": 3.0, "epsilon": 2.5}, rounds=30)
    records = case.serve()
    info = load_run(case.out).info
    assert info["status"] == "complete"
    assert info["stopped"].startswith("the privacy budget is spent")
    assert records[-1]["server"]["epsilon"] <= 2.5
    assert len(list(case.grid.state.glob("*/*/*/model.safetensors"))) == len(CLIENTS)
    before = case.saved().state.server
    assert case.serve() == records
    assert same(case.saved().state.server, before)


def test_a_killed_server_counts_every_release_once(tmp_path):
    case = private(tmp_path, rounds=4)
    serve_until_killed(case, lambda carried: carried.trains == 3 and carried.client == selected(case, 3)[1])
    records = case.serve()
    assert [r["server"]["releases"] for r in records[1:]] == [1, 2, 3, 4]
    assert_states_as_in_one_process(case, records)


@pytest.mark.parametrize("noise", ["keyed", "system"])
def test_no_sum_is_noised_twice_where_its_noised_version_was_sent(tmp_path, noise):
    case = private(tmp_path, privacy=KEYED | {"noise": noise}, rounds=4)
    serve_until_killed(case, lambda carried: carried.trains == 4)
    newest = sorted((case.out / "checkpoints").glob("round-*.safetensors"))[-1]
    newest.write_bytes(b"damaged")
    with refused("the model of round 3 was sent out", "second time"):
        case.serve()


def test_a_round_that_is_abandoned_under_masks_counts(tmp_path):
    upload, engine = {"mask": True, "mask_threshold": 2}, {"fraction": 1.0}
    case = private(tmp_path, upload=upload, engine=engine, flower={"retries": 1})
    case.grid.fate = lambda carried: [lost(carried)] if carried.trains == 2 and carried.client < "s" else None
    records = case.serve()
    assert len(dropped(records)[2]) == len(CLIENTS)
    assert [r["server"]["releases"] for r in records[1:]] == [1, 2, 3]
    assert records[-1]["server"]["epsilon"] == gaussian_epsilon(math.sqrt(3), 1e-5)


@pytest.mark.parametrize("budget", [None, 4.5])
def test_samples_are_protected_as_in_one_process(tmp_path, budget):
    """With a budget clients of one step a phase can afford 2 rounds and no more, and the run ends with the last."""
    case = private(tmp_path, privacy=SITES | ({"epsilon": budget} if budget else {}), rounds=9, **WHOLE)
    for node in case.grid.clients:
        case.grid.clients[node]["tell"] = "epsilon"
    records = case.serve()
    end, expected = alone(case)
    assert len(records) == len(expected) == (10 if budget is None else records[-1]["round"] + 1)
    assert same(case.saved().state.server, end.server)
    assert [r.get("abstaining") for r in records] == [r.get("abstaining") for r in expected]
    rows = {row["id"]: row for row in read_json(case.out / "privacy.json")["clients"]}
    for k, name in enumerate(CLIENTS):
        steps = end.store.get(k).state.numbers[STEPS]
        assert rows[name]["steps"] == steps
        assert rows[name]["epsilon"] == gaussian_epsilon(math.sqrt(steps) / 2.0, 1e-5)
        assert budget is None or rows[name]["epsilon"] <= budget
    if budget:
        assert records[-1]["abstaining"] == [*range(len(CLIENTS))]
        assert load_run(case.out).info["stopped"].startswith("the privacy budget of every client is spent")


def test_replies_that_are_lost_or_repeated_are_counted_once_each(tmp_path):
    case = private(tmp_path, privacy=SITES, rounds=4, **WHOLE)
    case.grid.fate, missed = failing(case)
    records = case.serve()
    assert dropped(records) == missed
    run = case.saved().ledger.run
    for k, name in enumerate(CLIENTS):
        asked = {(c.asked["token"], c.trains) for c in case.grid.carried if c.client == name and c.trains}
        path = case.grid.state / str(100 + k) / run / f"client-{name}" / "privacy.json"
        steps = read_json(path)["steps"] if path.is_file() else 0
        assert steps == 2 * len(asked)  # also those that the server never heard of
    assert not (case.out / "privacy.json").exists()  # nobody was allowed to tell


def test_what_a_node_demands_of_a_run(tmp_path):
    for privacy, said in (
        ({}, "protects no samples"),
        (SITES, "infinity"),
        (SITES | {"epsilon": 9.0}, "budget 9.0"),
        (SITES | {"epsilon": 8.0}, "privacy.noise"),
        (SITES | {"epsilon": 8.0, "noise": "system", "delta": 0.5}, "δ = 0.5"),
    ):
        case = private(tmp_path / said, privacy=privacy, rounds=1, flower={"wait": 1.0}, **WHOLE)
        case.grid.clients[101]["sample-epsilon"] = 8.0
        with refused(CLIENTS[1]):
            case.serve()
        assert any(said in line for line in case.said)


def test_terms_that_change_in_a_run_are_refused_by_the_node(tmp_path):
    case = private(tmp_path, privacy=SITES, rounds=3, engine={"fraction": 1.0}, **WHOLE)
    original = case.grid._run

    def run(message):
        asked, tensors = codec.decode(message.content)
        if asked.get("train") == 2 and asked["client"] == CLIENTS[0]:
            asked["settings"]["privacy"]["noise_multiplier"] = 0.1
        if asked.get("train") == 2 and asked["client"] == CLIENTS[1]:
            del asked["settings"]["privacy"]
        message.content = codec.records(asked, codec.block(tensors))
        original(message)

    case.grid._run = run
    assert dropped(case.serve()) == {2: [0, 1]}
    said = [what for _, _, what in case.events()]
    assert any("samples were protected in this run" in what for what in said)


def test_what_would_tell_more_is_refused():
    for more, *mentions in (
        ({"privacy": {"epsilon": 8.0}}, "privacy.samples"),
        ({"privacy": {"samples": 40}, "flower": {"lost": "readmit"}}, "flower.lost", "[privacy]"),
        ({"privacy": {"samples": 40, "clip": "adaptive"}, "upload": {"mask": True}}, "adaptive", "upload.mask"),
        ({"privacy": {"samples": 40, "correlation": "tree"}, "upload": {"mask": True}}, "tree", "upload.mask"),
        ({"privacy": {"level": "sample", "samples": 40}}, "privacy.samples"),
    ):
        with refused(*mentions):
            deployment(tables("fedapm", **more))
