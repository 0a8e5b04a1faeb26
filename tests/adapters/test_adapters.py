"""Adapters: every preset under every kind of method, the frozen base, kept features and a solvable case."""

import numpy as np
import pytest
import torch
from torch import nn

import fedapm
from fedapm.adapters import AdaptedNetwork, LoraSettings, adapted
from fedapm.algorithms import method
from fedapm.core.kept import KEPT
from fedapm.core.network import Network
from fedapm.core.samples import Samples
from fedapm.core.split import SplitRule
from fedapm.errors import FedapmError
from fedapm.models.text import TextClassifier
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from tests.adapters.tiny import CLASSES, LORA, network, problem, texts, tiny_folder
from tests.helpers.running import play

PRESETS = ("lora", "ffa-lora", "dual", "head")
METHODS = ("fedapm", "fedalt", "fedavg", "fedprox", "ditto", "local")
SHARED = {
    "lora": ("lora_A",),
    "ffa-lora": ("lora_B",),
    "dual": ("lora_A.shared", "lora_B.shared"),
    "head": ("head",),
}


def schedule(rounds: int = 2) -> Schedule:
    return Schedule(rounds, Sampling(1.0), evaluate_every=rounds)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", METHODS)
def test_what_is_trained_moves_and_nothing_frozen_is_touched_or_sent(name, preset):
    algorithm = method(name)()
    here = problem(algorithm, preset)
    net = here.network(0)
    before = {n: p.detach().clone() for n, p in net.module.named_parameters()}
    engine = SequentialEngine(here, algorithm)
    end, records = play(here, algorithm, schedule(), engine=engine)
    frozen = set(net.split.frozen)
    assert frozen >= net.module.base_parameters
    for name_of, parameter in net.module.named_parameters():
        if name_of in frozen:
            assert torch.equal(parameter, before[name_of]), name_of
    state = engine.store.get(0)
    kept = {n for vector in state.state.vectors.values() for n in vector} | set(state.buffers)
    sent = {n for vector in end.server.vectors.values() for n in vector}
    assert not frozen & (kept | sent)
    if name in ("fedapm", "fedalt"):
        assert sent
        assert all(any(part in n for part in SHARED[preset]) for n in sent)
        moved = [n for n in end.server["u"] if not torch.equal(end.server["u"][n], here.u0[n])]
        assert moved
    assert records[-1]["evaluations"]["model" if "model" in algorithm.views else algorithm.views[0]]["accuracy"]["mean"]
    whole = sum(p.numel() for p in net.module.parameters()) * 4
    assert all(record["bytes_up"] < whole for record in records)


@pytest.mark.parametrize("preset", ["lora", "dual"])
def test_processes_agree_to_the_bit_and_find_kept_features(preset):
    algorithm = fedapm.FedAPM()
    ends = []
    for kind in (SequentialEngine, ProcessEngine):
        here = problem(algorithm, preset)
        engine = kind(here, algorithm, 2) if kind is ProcessEngine else kind(here, algorithm)
        end, _ = play(here, algorithm, schedule(), engine=engine)
        ends.append(end.server)
        assert KEPT.used > 0
        if kind is ProcessEngine:
            engine.close()
    assert ends[0]["u"].equal(ends[1]["u"])


def test_kept_features_are_what_the_network_computes():
    here = problem(fedapm.FedAPM())
    net, samples = here.network(0), here.samples(0, "train")
    data = net.kept(samples)
    assert data.samples.inputs[0].shape == (len(samples), 10, 8), "the states after the first of two layers"
    with torch.no_grad():
        net.module.eval()
        torch.testing.assert_close(data.call(*data.samples.inputs), net.module(*samples.inputs), rtol=1e-5, atol=1e-6)
    assert net.kept(samples).samples.inputs[0] is data.samples.inputs[0], "computed once"
    copy = Samples(samples.inputs, samples.targets)
    used = KEPT.used
    net.kept(copy)
    assert KEPT.used > used
    del copy
    assert KEPT.used == used, "forgotten with the samples"


def test_runs_on_the_same_clients_find_each_others_features():
    """Where the base below the adapters is the same, and not where it is another or more of it is below."""
    texts_of = {}
    for name, preset, lora in (
        ("first", "lora", {}), ("again", "lora", {}), ("rank", "lora", {"rank": 1}), ("a frozen", "ffa-lora", {}),
        ("probe", "head", {}), ("lower", "lora", {"layers": [0]}),
    ):  # fmt: skip
        here = problem(fedapm.FedAPM(), preset, seed=len(texts_of), lora=lora)
        texts_of[name] = here.network(0).kept(here.samples(0, "train")).samples.inputs[0].data_ptr()
    assert len({texts_of[name] for name in ("first", "again", "rank", "a frozen")}) == 1
    assert len(set(texts_of.values())) == 3
    other = adapted(TextClassifier(CLASSES, weights=str(tiny_folder(1))), LoraSettings(**LORA))
    samples = texts()[0].train
    found = Network(other, SplitRule("lora").apply(other), nn.functional.cross_entropy).kept(samples)
    assert found.samples.inputs[0].data_ptr() not in texts_of.values()


def test_features_beyond_the_budget_are_on_disk_and_equal():
    here, other = problem(fedapm.FedAPM()), problem(fedapm.FedAPM(), federation=texts.__wrapped__())
    other.network(0)._memory, used = 1, KEPT.used
    found = [p.network(0).kept(p.samples(0, "train")).samples.inputs[0] for p in (here, other)]
    assert torch.equal(*found)
    assert other.network(0).kept(other.samples(0, "train")).samples.inputs[0] is found[1]
    assert KEPT.used - used in (0, found[0].nbytes + 8 * len(found[0])), "those of the first, if they were not there"
    results = [play(p, fedapm.FedAPM(), schedule(1))[0].server["u"] for p in (here, other)]
    assert results[0].equal(results[1])


def test_keeping_features_changes_results_by_rounding_only():
    here, other = problem(fedapm.FedAPM(), optimizer="sgd"), problem(fedapm.FedAPM(), optimizer="sgd")
    other.network(0)._memory = 0
    ends = [play(p, fedapm.FedAPM(), schedule(2))[0].server["u"] for p in (here, other)]
    assert (ends[0] - ends[1]).norm() < 1e-5 * ends[0].norm()


def test_the_base_is_in_memory_once():
    """Networks of clients whose ranks differ, and copies, have the very same tensors."""
    ranks = {"client-0": 1, "client-2": 3}
    here = problem(fedapm.FedAPM(), "dual", lora={"personal_rank": ranks})
    nets = [here.network(k).module for k in range(3)]
    ranks_found = [n.get_submodule(n.targets[0]).lora_A["personal"].weight.shape[0] for n in nets]
    assert ranks_found == [1, 2, 3]
    word = "encoder.embeddings.word_embeddings.weight"
    assert len({net.get_parameter(word).data_ptr() for net in nets}) == 1
    end, _ = play(here, fedapm.FedAPM(), schedule(1))
    assert set(end.server["u"]) == set(here.u0)


def test_a_model_that_is_handed_out_leaves_the_base_frozen():
    how = {"optimizer": "adamw", "rounds": 1, "engine": "sequential"}
    result = fedapm.train(texts(), network, lora={"rank": 1}, **how)
    model = result.model("client-0")
    assert {n for n, p in model.named_parameters() if p.requires_grad} == set(model.state_dict())
    assert problem(fedapm.FedAPM()).network(0).split.frozen


def test_a_state_dict_has_no_base_and_goes_back_in():
    one, two = (adapted(network(), LoraSettings(rank=2)) for _ in range(2))
    assert isinstance(one, AdaptedNetwork)
    assert type(one).__name__ == "TextClassifier"
    state = one.state_dict()
    assert all("lora_" in n or n.startswith("head.") for n in state)
    two.load_state_dict(state)
    inputs = texts()[0].train.inputs
    assert torch.equal(one.eval()(*inputs), two.eval()(*inputs))
    with pytest.raises(FedapmError, match="alone"):
        two.load_state_dict({**state, "more": torch.ones(1)})


def test_any_module_can_have_adapters():
    body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    with_them = adapted(body, LoraSettings(rank=1))
    assert [n for n, p in with_them.named_parameters() if p.requires_grad] == [
        "0.lora_A.default.weight", "0.lora_B.default.weight", "2.weight", "2.bias",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"targets": ["qeury"]}, "'query'"),
        ({"head": ["haed"]}, "'head'"),
        ({"layers": [7]}, "no layer is left"),
        ({"rank": 0}, "rank"),
    ],
)
def test_settings_that_name_nothing_are_refused(settings, said):
    with pytest.raises(FedapmError, match=said):
        problem(fedapm.FedAPM(), lora=settings)


def test_a_preset_of_adapters_needs_adapters():
    federation = fedapm.Federation.from_clients({0: (torch.randn(8, 4), torch.arange(8) % 2)})
    with pytest.raises(FedapmError, match=r"set model\.lora"):
        fedapm.train(federation, nn.Linear(4, 2), preset="dual", rounds=1)


def test_weights_that_cannot_be_had_are_named_in_one_line(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FedapmError, match="no folder") as caught:
        TextClassifier(2, weights="nobody/nothing")
    assert "\n" not in str(caught.value)


def test_a_shared_head_reaches_the_convex_solution():
    """FedAPM with full participation on a linear probe, against scipy on the features of the frozen base."""
    from scipy.optimize import minimize

    decay, rounds = 0.3, 40
    algorithm = fedapm.FedAPM(rho=0.3, server="all")
    here = problem(algorithm, "head", optimizer="sgd", lr=0.5, epochs=10, batch_size=0, weight_decay=decay)
    features = [here.network(0).kept(here.samples(k, "train")).samples.inputs[0].double().numpy() for k in range(3)]
    labels = [here.samples(k, "train").targets.numpy() for k in range(3)]
    width = features[0].shape[1]

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = flat[: CLASSES * width].reshape(CLASSES, width), flat[CLASSES * width :]
        total, gw, gb = 0.5 * decay * flat @ flat, decay * w, decay * b
        for x, y in zip(features, labels, strict=True):
            scores = x @ w.T + b
            scores -= scores.max(1, keepdims=True)
            p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            total -= np.log(p[np.arange(len(y)), y]).mean() / 3
            p[np.arange(len(y)), y] -= 1
            gw, gb = gw + p.T @ x / len(y) / 3, gb + p.mean(0) / 3
        return total, np.concatenate([gw.ravel(), gb])

    best = minimize(value, np.zeros(CLASSES * (width + 1)), jac=True, method="L-BFGS-B", options={"gtol": 1e-10})
    end, _ = play(here, algorithm, schedule(rounds))
    u = end.server["u"]
    found = np.concatenate([u["head.weight"].double().numpy().ravel(), u["head.bias"].double().numpy()])
    assert np.abs(found - best.x).max() < 1e-4


def test_a_run_is_resumed_to_the_bit_and_read_back(tmp_path):
    how = {"lora": {"rank": 2, "layers": [-1]}, "optimizer": "adamw", "lr": 0.02, "epochs": 1, "checkpoint_every": 1}
    whole = fedapm.train(texts(), network, rounds=3, **how)
    fedapm.train(texts(), network, rounds=2, out=tmp_path / "run", **how)
    resumed = fedapm.train(texts(), network, rounds=3, out=tmp_path / "run", resume=True, **how)
    states = [run.state_dict("client-1") for run in (whole, resumed)]
    assert all(torch.equal(t, states[1][n]) for n, t in states[0].items())
    again = fedapm.load(tmp_path / "run", model=network)
    inputs = texts()[1].test.inputs
    assert torch.equal(again.predict("client-1", inputs), resumed.predict("client-1", inputs))
    base = sum(f.stat().st_size for f in tiny_folder().glob("*.safetensors"))
    assert all(f.stat().st_size < base for f in (tmp_path / "run").rglob("*.safetensors"))


def test_the_base_is_a_part_of_a_runs_identity_and_read_once(monkeypatch):
    first = problem(fedapm.FedAPM())
    monkeypatch.setattr("fedapm.core.network.digest", lambda *_: pytest.fail("added up twice"))
    assert len(first.frozen_digest) == 64
    plain = Problem(texts(), network)
    assert plain.frozen_digest == ""
