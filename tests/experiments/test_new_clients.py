"""Clients that took no part: a personal part of their own, at the fixed shared model of a run."""

import json

import numpy as np
import pytest
import torch

import fedapm
from fedapm import ClientData, FedAlt, FedAPM, Federation, Samples, train
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.runs.files import read_json
from tests.helpers.problems import Linear2, convex
from tests.helpers.unit import blob_clients, blobs, refused, two_layers

OPTIONS = {"personal": ["head"], "rounds": 4, "batch_size": 10, "seed": 3, "fraction": 0.7, "engine": "sequential"}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """FedAPM on five clients; two more are held out."""
    federation = blob_clients(7, 30)
    return train(federation, two_layers, unseen=["b", "f"], out=tmp_path_factory.mktemp("new") / "run", **OPTIONS)


def client(x, y, name="new", test=None):
    return Federation.from_clients({name: (x, y)}, test={name: test or (x[:0], y[:0])})[0]


# what an old client gets


@pytest.mark.parametrize("method", [FedAPM(rho=0.5, sigma=0.0), FedAPM(rho=0.5, sigma=0.1), FedAlt()])
def test_an_old_client_gets_its_own_model_again(method):
    """The problem in v is strongly convex, so its solution does not depend on where the search starts."""
    problem = convex("quadratic")
    given = {"batch_size": 0, "weight_decay": problem.ridge, "loss": problem.loss, "personal": ["v"]}
    more = {"rounds": 2, "fraction": 0.5, "lr": 0.8, "engine": "sequential", "final_personal_epochs": 60}
    run = train(problem.federation, lambda: Linear2(problem.d, problem.p), algorithm=method, **given, **more)
    sigma, u = getattr(method, "sigma", 0.0), run.state.server.u["u"]
    for k, data in enumerate(problem.federation.clients):
        again = fedapm.personalize(run, data, validation=0, epochs=60)
        assert again.epochs == 60
        # by hand: (WᵀW/n + λ)v = Wᵀ(y − Xu)/n; in the closing phase σ(v − v_i) is added to it
        (x, w), y = data.train.inputs, data.train.targets
        left, right = w.T @ w / len(y) + problem.ridge * torch.eye(problem.p), w.T @ (y - x @ u) / len(y)
        assert torch.allclose(again.model.v.detach(), torch.linalg.solve(left, right), atol=1e-8)
        assert again.model.u.equal(u)
        old = run.engine.store.get(k).state.v["v"]
        closed = torch.linalg.solve(left + sigma * torch.eye(problem.p), right + sigma * old)
        assert torch.allclose(run.state_dict(data.id)["v"], closed, atol=1e-8)
        if not sigma:
            assert torch.allclose(run.state_dict(data.id)["v"], again.state_dict()["v"], atol=1e-8)


# what a new client gets


def test_a_folder_gives_what_the_result_gave(result, tmp_path):
    data = result.federation.unseen[0]
    here = fedapm.personalize(result, data)
    saved = result.save(tmp_path / "saved")
    there = fedapm.personalize(saved, data, model=two_layers)
    loaded = fedapm.personalize(fedapm.load(saved, two_layers), data)
    assert here.as_dict() == there.as_dict() == loaded.as_dict()
    assert all(t.equal(there.state_dict()[n]) for n, t in here.state_dict().items())
    assert result.trained_run().seen_classes == frozenset(range(3))


def test_it_is_better_after_and_the_shared_part_is_the_run_s(result):
    x, y = blobs(60, seed=50)
    labels = (y + 1) % 3  # everybody else says it differently, so only a personal part can be right
    found = fedapm.personalize(result, (x, labels))
    assert found.after["accuracy"] > found.before["accuracy"] + 0.2
    assert found.judged_on == "validation"
    assert any("chose the number of epochs" in note for note in found.notes)
    assert 0 < found.epochs <= 50
    shared = result.state.server.u
    assert all(found.state_dict()[n].equal(t) for n, t in shared.items())
    assert not found.model.training
    outputs = found.model(torch.as_tensor(x)).argmax(1).numpy()
    assert (outputs == labels).mean() > 0.8


def test_neither_order_nor_company_changes_anything(result):
    clients = result.federation.unseen
    both = fedapm.personalize(result, Federation(clients))
    other = fedapm.personalize(result, clients[::-1])
    alone = [fedapm.personalize(result, one) for one in clients]
    assert [c.as_dict() for c in both] == [c.as_dict() for c in other[::-1]] == [c.as_dict() for c in alone]


def test_it_starts_where_its_own_loss_is_lower(result):
    usual = fedapm.personalize(result, client(*blobs(30, seed=70)))
    assert usual.start == "mean"
    # the trained heads are confidently wrong about these
    x, y = blobs(30, seed=70)
    assert fedapm.personalize(result, client(x, (y + 1) % 3)).start == "initial"


def test_the_number_of_epochs_is_that_of_the_lowest_loss_on_what_is_held_out(result):
    data = client(*blobs(40, seed=80))
    chosen = fedapm.personalize(result, data, patience=3, epochs=20)
    assert chosen.train == 32
    cut = fedapm.personalize(result, data, patience=20, epochs=chosen.epochs)
    assert cut.as_dict() == chosen.as_dict()
    none = fedapm.personalize(result, data, epochs=0)
    assert none.epochs == 0
    assert none.after == none.before == chosen.before


def test_a_copy_of_the_shared_part_if_asked(result):
    data = client(*blobs(60, seed=90), test=blobs(60, seed=91))
    plain, corrected = (fedapm.personalize(result, data, correct=correct) for correct in (False, True))
    assert plain.before == corrected.before
    assert corrected.corrected != any("left out" in note for note in corrected.notes)
    before, after = (
        fedapm.personalize(result, data, validation=0, epochs=3, correct=correct) for correct in (False, True)
    )
    assert after.corrected
    assert after.state_dict()["head.weight"].equal(before.state_dict()["head.weight"])


def test_the_copy_is_the_solution_of_the_first_step_of_fedapm():
    """(XᵀX/n + λ + ρ)u = Xᵀ(y − Wv)/n + ρū."""
    problem = convex("quadratic")
    solver = {"batch_size": 0, "weight_decay": problem.ridge, "loss": problem.loss, "lr": 0.5, "epochs": 80}
    make, method = lambda: Linear2(problem.d, problem.p), FedAPM(rho=0.5)
    run = train(problem.federation, make, algorithm=method, rounds=1, personal=["v"], engine="sequential", **solver)
    data, u = problem.federation[1], run.state.server.u["u"]
    found = fedapm.personalize(run, data, validation=0, epochs=2, correct=True)
    (x, w), y, v = data.train.inputs, data.train.targets, found.model.v.detach()
    left = x.T @ x / len(y) + (problem.ridge + 0.5) * torch.eye(problem.d)
    assert torch.allclose(found.model.u.detach(), torch.linalg.solve(left, x.T @ (y - w @ v) / len(y) + 0.5 * u))


def test_only_fedapm_corrects():
    run = train(blob_clients(2), two_layers, algorithm="fedalt", rounds=1, personal=["head"])
    with refused("only FedAPM", "FedAlt"):
        fedapm.personalize(run, client(*blobs(20)), correct=True)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "pfedme", "lp-proj", "fedala", "local", "fedsim"])
def test_every_kind_of_method_has_something_to_give(name):
    run = train(blob_clients(3), two_layers, algorithm=name, rounds=3, personal=["head"], engine="sequential")
    data = client(*blobs(40, seed=5), test=blobs(40, seed=6))
    found = fedapm.personalize(run, data)
    assert found.after["test_loss"] <= found.before["test_loss"] + 0.05
    if name == "fedavg":
        assert found.epochs == 0
        assert found.after == found.before
        assert "no personal part" in found.notes[0]
        assert all(found.state_dict()[n].equal(t) for n, t in run.state_dict("a").items())
    else:
        assert found.epochs > 0


def test_clients_with_networks_of_their_own_start_anew():
    clients = blob_clients(3)
    make = lambda data: two_layers(classes=3 + (data.id == "a"))  # noqa: E731
    run = train(clients, make, rounds=2, personal=["head"], fraction=1.0)
    assert fedapm.personalize(run, client(*blobs(20, seed=8))).start == "initial"


# little or odd data


def test_three_samples(result):
    x, y = blobs(3, seed=60)
    found = fedapm.personalize(result, (x, y))
    assert found.train == 3
    assert found.epochs == result.spec.problem.solver.epochs
    assert found.judged_on == "training"
    assert any("3 samples are too few" in note for note in found.notes)
    one = fedapm.personalize(result, (x[:1], y[:1]))
    assert any("1 sample is too few" in note for note in one.notes)


def test_one_class(result):
    x, y = blobs(60, seed=61)
    found = fedapm.personalize(result, (x[y == 2], y[y == 2]))
    assert any("of class 2" in note for note in found.notes)
    assert found.after["accuracy"] == 1.0
    assert found.after["auc"] is None


def test_a_class_that_nobody_had_but_the_network_knows():
    federation = Federation.from_clients(
        {name: (x[y < 2], y[y < 2]) for name, (x, y) in {"a": blobs(40, seed=1), "b": blobs(40, seed=2)}.items()}
    )
    run = train(federation, two_layers, personal=["head"], rounds=3, batch_size=10)
    found = fedapm.personalize(run, client(*blobs(60, seed=3), test=blobs(60, seed=4)))
    assert any("class 2" in note for note in found.notes)
    assert found.after["accuracy"] > found.before["accuracy"]
    assert found.after["accuracy"] > 0.8


def test_what_cannot_work_is_one_line(result):
    x, y = blobs(20)
    with refused("class 7", "8 outputs", "has 3"):
        fedapm.personalize(result, (x, y + 5))
    with refused("shape (3,)"):
        fedapm.personalize(result, (x[:, :3], y))
    with refused("quantities", "classes"):
        fedapm.personalize(result, (x, y.astype(np.float32) + 0.5))
    with refused("ClientData"):
        fedapm.personalize(result, "digits")
    with refused("held out"):
        fedapm.personalize(result, (x, y), validation=1.0)
    with refused("negative"):
        fedapm.personalize(result, (x, y), epochs=-1)
    with refused("no training data"):
        fedapm.personalize(result, (x[:0], y[:0]))


def test_a_run_that_cannot_be_used_says_so(result, tmp_path):
    folder = result.save(tmp_path / "saved")
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    with refused("no whole checkpoint"):
        fedapm.personalize(folder, blobs(20), model=two_layers)
    (folder / "run.json").write_text(json.dumps(read_json(folder / "run.json") | {"status": "interrupted"}))
    with refused("not complete", "--resume"):
        fedapm.personalize(folder, blobs(20), model=two_layers)


def test_few_of_many_samples(result):
    data = client(*blobs(200, seed=66), test=blobs(50, seed=67))
    found = fedapm.personalize(result, data, samples=20)
    assert found.train == 16
    assert found.judged_on == "test"


# clients that a run holds out


def test_held_out_clients_are_not_seen(result):
    federation = result.federation
    assert [c.id for c in federation.clients] == ["a", "c", "d", "e", "g"]
    assert [c.id for c in federation.unseen] == ["b", "f"]
    assert len(result.spec.problem.alphas) == 5
    without = Federation([c for c in blob_clients(7, 30).clients if c.id not in ("b", "f")], "blobs")
    other = train(without, two_layers, **OPTIONS)
    assert other.records == result.records
    assert other.state.server.u.equal(result.state.server.u)


def test_their_scores_are_those_of_personalize(result, tmp_path):
    table = result.unseen
    assert list(table.index) == ["b", "f"]
    for data in result.federation.unseen:
        found = fedapm.personalize(result, data)
        assert table.loc[data.id, "before.accuracy"] == found.before["accuracy"]
        assert table.loc[data.id, "after.accuracy"] == found.after["accuracy"]
        assert found.judged_on == "test"
    assert fedapm.load(result.save(tmp_path / "saved"), two_layers).unseen.equals(table)


def test_who_is_held_out_depends_on_the_seed_of_the_data_alone():
    data = {"name": "digits", "clients": 10, "unseen": 0.3}
    first, again = (build.federation(build.resolve({"data": data}).data) for _ in range(2))
    other = build.federation(build.resolve({"data": {**data, "seed": 1}}).data)
    assert len(first.unseen) == 3
    assert [c.id for c in first.unseen] == [c.id for c in again.unseen]
    whole = build.federation(build.resolve({"data": {**data, "unseen": 0.0}}).data)
    for part in (*first.clients, *first.unseen):
        same = whole[whole.position(part.id)]
        assert part.train.inputs[0].equal(same.train.inputs[0])
    assert [c.id for c in other.unseen] != [c.id for c in first.unseen] or len(other) == len(first)
    validated = build.federation(build.resolve({"data": {**data, "validation": 0.25}}).data)
    reference = whole.for_validation(0.25, 0)
    for part in (*validated.clients, *validated.unseen):
        assert part.train.inputs[0].equal(reference[reference.position(part.id)].train.inputs[0])


def test_a_bad_share_or_id_is_one_line():
    clients = blob_clients(3)
    with refused("below 1"):
        clients.hold_out(1.0)
    with refused("all 3 clients"):
        clients.hold_out(["a", "b", "c"])
    with refused("no client 'z'"):
        clients.hold_out(["z"])
    assert len(clients.hold_out(0.01).unseen) == 1
    assert clients.hold_out(0.0).unseen == []


def test_killed_while_they_are_scored_it_ends_the_same(tmp_path, monkeypatch):
    from fedapm.errors import Interrupted
    from fedapm.experiments import run as running

    settings = {"data": {"clients": 4, "unseen": [1, 3]}, "engine": {"rounds": 1, "engine": "sequential"}}
    plan = build.plan(build.resolve(settings))
    straight = tmp_path / "straight"
    execute(plan, straight, progress=False)

    def killed(*_):
        raise KeyboardInterrupt

    out = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(running, "personalize_client", killed)
        with pytest.raises(Interrupted):
            execute(plan, out, progress=False)
    assert not (out / "unseen.json").exists()
    execute(plan, out, resume=True, progress=False)
    assert (out / "unseen.json").read_bytes() == (straight / "unseen.json").read_bytes()
    assert [row["id"] for row in read_json(out / "unseen.json")["clients"]] == ["1", "3"]
    assert len(read_json(out / "run.json")["clients"]) == 2


def test_a_client_in_another_order_of_classes_is_still_checked(result):
    data = client(*blobs(20, seed=3))
    wrong = ClientData("odd", data.train, Samples(data.train.inputs, data.train.targets + 3))
    with refused("client odd", "class 5"):
        fedapm.personalize(result, wrong)
