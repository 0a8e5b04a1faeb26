"""The personal part kept from overfitting: a prior, early stopping and dropout, each against an answer found apart."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapm import FedAPM, FedAvg, Local
from fedapm.core import random
from fedapm.core.dropout import dropout_before, layers_of
from fedapm.core.forward import Step
from fedapm.core.network import Network
from fedapm.core.samples import Samples
from fedapm.core.solver import Epochs, Prox, SGDConfig, UntilStationary
from fedapm.core.split import SplitRule
from fedapm.core.task import LocalTask
from fedapm.core.vec import Vec
from fedapm.models import CNN, DigitsNet, HARClassifier
from tests.helpers.problems import Linear2, convex
from tests.helpers.unit import refused


@pytest.fixture(scope="module")
def known():
    return convex("quadratic")


V = Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
U = Vec({"u": torch.tensor([0.2, 0.4, -0.6], dtype=torch.float64)})


def task_of(known, method=None, **options) -> LocalTask:
    problem = known.problem(method or FedAPM(), SGDConfig(**{"batch_size": 0, "weight_decay": 0.05} | options))
    return problem.task(1, 1)


@pytest.mark.parametrize("prior", [0.1, 3.0])
@pytest.mark.parametrize("decay_v", [None, 0.4])
def test_the_prior_has_its_closed_form(known, prior, decay_v):
    """argmin α·(½·mean (x·u + w·v − y)² + λ/2·‖v‖² + λ₀/2·‖v − v⁰‖²) + σ/2·‖v − c‖², solved as linear equations."""
    task = task_of(known, lr=0.2, prior_v=prior, weight_decay_v=decay_v)
    weight, sigma = 0.7, 0.3
    v0 = Linear2(known.d, known.p).v.detach()
    assert torch.equal(task.v0["v"], v0)
    x, w = task.train.inputs
    eye = torch.eye(2, dtype=torch.float64)
    count, decay = len(task.train), 0.05 if decay_v is None else decay_v
    matrix = weight * (w.T @ w / count + (decay + prior) * eye) + sigma * eye
    right = weight * (w.T @ (task.train.targets - x @ U["u"]) / count + prior * v0) + sigma * V["v"]
    found = task.minimize(V, fixed=U, weight=weight, prox=Prox(sigma, V), stop=UntilStationary(1e-24, 3000))
    assert task.log[0].residual <= 1e-24
    torch.testing.assert_close(found["v"], torch.linalg.solve(matrix, right), rtol=0, atol=1e-10)


def test_gradient_and_value_have_the_prior(known):
    task, h = task_of(known, prior_v=0.8), 1e-6
    gradient = task.gradient(U | V)
    assert gradient.names == ("u", "v")
    for name, size in (("u", 3), ("v", 2)):
        for j in range(size):
            shift = (U | V).zeros()
            shift[name][j] += h
            slope = (task.value((U | V) + shift) - task.value((U | V) - shift)) / (2 * h)
            assert gradient[name][j].item() == pytest.approx(slope, abs=1e-7)
    without = task_of(known)
    center = Linear2(known.d, known.p).v.detach()
    assert task.value(U, V) - without.value(U, V) == pytest.approx(0.4 * float(((V["v"] - center) ** 2).sum()))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay_v", [None, 0.4])
def test_steps_of_both_parts_at_once_pull_the_personal_one_alone(known, momentum, decay_v):
    """Five steps against torch.optim.SGD on the objective written as a graph."""
    task, lr = task_of(known, momentum=momentum, prior_v=0.8, weight_decay_v=decay_v), 0.05
    found = task.minimize(U | V, weight=0.5, stop=Epochs(5), lr=lr)
    u, v = (part[n].clone().requires_grad_(True) for part, n in ((U, "u"), (V, "v")))
    center = Linear2(known.d, known.p).v.detach()
    optimiser = torch.optim.SGD([u, v], lr=lr, momentum=momentum)
    x, w = task.train.inputs
    for _ in range(5):
        optimiser.zero_grad()
        f = known.loss(x @ u + w @ v, task.train.targets) + 0.025 * u @ u
        f = f + (0.05 if decay_v is None else decay_v) / 2 * v @ v + 0.4 * ((v - center) ** 2).sum()
        (0.5 * f).backward()
        optimiser.step()
    torch.testing.assert_close(found["u"], u.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(found["v"], v.detach(), rtol=0, atol=1e-12)


def test_a_phase_of_shared_parameters_has_no_prior(known):
    assert task_of(known, prior_v=0.8).prior(("u",)) is None
    assert task_of(known, FedAvg(), prior_v=0.8).prior(("u", "v")) is None, "all of it is shared"
    assert task_of(known, Local(), prior_v=0.8).prior(("u", "v")).center.names == ("u", "v")
    assert task_of(known, prior_v=0.0).prior(("v",)) is None


@pytest.mark.parametrize("key", ["prior_v", "dropout_v", "validation_v"])
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_values_out_of_range_are_refused(key, value):
    if key == "prior_v" and value > 0:
        assert SGDConfig(prior_v=value).prior_v == value
        return
    with pytest.raises(ValueError, match=f"solver.{key} = {value}"):
        SGDConfig(**{key: value})


class Overfitting(nn.Module):
    """A personal layer on a fixed shared one, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(1)
        self.body = nn.Linear(20, 15).double()
        self.head = nn.Linear(15, 3).double()
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=stream)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


def noise(count: int = 23, width: int = 20, classes: int = 3) -> Samples:
    """Labels that have nothing to do with inputs, so that a few epochs overfit."""
    stream = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, width, generator=stream, dtype=torch.float64)
    return Samples((inputs,), torch.randint(0, classes, (count,), generator=stream))


def local(module: nn.Module, samples: Samples, personal: tuple[str, ...] = ("head",), **solver) -> LocalTask:
    network = Network(module, SplitRule(personal=personal).apply(module), functional.cross_entropy)
    v0 = network.read(network.split.personal)
    return LocalTask(network, samples, SGDConfig(**{"lr": 0.05, "batch_size": 5} | solver), 3, 2, 7, v0=v0)


def trained(task: LocalTask, stop: Epochs | UntilStationary | None = None, block: str = "personal") -> Vec:
    return task.minimize(task.network.read(getattr(task.network.split, block)), stop=stop)


@pytest.mark.parametrize("lr", [0.01, 0.2, 1.0, 50.0])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_early_stopping_is_that_of_a_naive_loop(lr, share):
    """Epochs written out on a copy: judged after each, and the best of them all taken, the start among them."""
    samples, most = noise(), 12
    task = local(Overfitting(), samples, lr=lr, validation_v=share)
    found = trained(task, Epochs(most))

    held = random.torch_generator(3, "validation of the personal phase", 2)
    judges = torch.randperm(23, generator=held)[: round(share * 23)]
    rest = torch.tensor([k for k in range(23) if k not in judges.tolist()])
    x, y = samples.inputs[0], samples.targets
    module = Overfitting()
    optimiser = torch.optim.SGD(module.head.parameters(), lr=lr)
    batches = random.torch_generator(3, "batches", 2, 7)
    history = [(functional.cross_entropy(module(x[judges]), y[judges]).item(), module.head.weight.detach().clone())]
    epochs = 0
    while epochs < most:
        for batch in Samples((x[rest],), y[rest]).shuffled(5, batches):
            optimiser.zero_grad()
            functional.cross_entropy(module(*batch.inputs), batch.targets).backward()
            optimiser.step()
        epochs += 1
        judged = functional.cross_entropy(module(x[judges]), y[judges]).item()
        history.append((judged, module.head.weight.detach().clone()))
        if judged >= min(loss for loss, _ in history[:-1]):
            break
    best = min(history, key=lambda pair: pair[0])[1]
    torch.testing.assert_close(found["head.weight"], best, rtol=0, atol=1e-10)
    assert task.log[0].epochs == epochs
    assert task.network.read(("head.weight",))["head.weight"].equal(found["head.weight"])


def test_early_stopping_ends_some_phases_early_and_not_others():
    few, many = local(Overfitting(), noise(), lr=0.2, validation_v=0.3), local(Overfitting(), noise(), lr=1e-5)
    trained(few, Epochs(50))
    trained(many, Epochs(5))
    assert 0 < few.log[0].epochs < 50
    assert many.log[0].epochs == 5


def test_the_samples_that_judge_are_the_same_in_every_round_and_differ_by_client():
    def judges(client: int, round: int) -> list[int]:
        task = local(Overfitting(), noise(), validation_v=0.4)
        made = LocalTask(task.network, task.train, task.solver, 3, client, round)
        return made._held_out(task.network.split.personal).tolist()

    assert judges(2, 1) == judges(2, 9)
    assert judges(2, 1) != judges(4, 1)


def test_phases_that_train_something_shared_are_not_stopped():
    for block in ("shared", "both"):
        alone, judged = (local(Overfitting(), noise(), **more) for more in ({}, {"validation_v": 0.4}))
        split = alone.network.split
        names = split.shared + (split.personal if block == "both" else ())
        assert alone.minimize(alone.network.read(names)).equal(judged.minimize(judged.network.read(names)))


def test_the_xi_rule_and_single_batches_are_not_stopped():
    alone, judged = (local(Overfitting(), noise(), **more) for more in ({}, {"validation_v": 0.4}))
    assert trained(alone, UntilStationary(1e-9, 3)).equal(trained(judged, UntilStationary(1e-9, 3)))
    start = alone.network.read(alone.network.split.personal)
    a, b = (task.minimize(start, batch=next(task.batches())) for task in (alone, judged))
    assert a.equal(b)


def test_two_samples_are_enough_and_one_is_trained_on():
    assert trained(local(Overfitting(), noise(2), validation_v=0.01)).is_finite()
    single, plain = local(Overfitting(), noise(1), validation_v=0.5), local(Overfitting(), noise(1))
    assert trained(single).equal(trained(plain))


def test_dropout_in_front_of_a_layer_is_dropout_in_front_of_it():
    """A network with the mask written into it: the same draws, the same steps."""

    class Dropping(Overfitting):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.body(x).tanh()
            if self.training:
                bits = torch.empty((hidden.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
                kept = bits.view(torch.int16)[: hidden.numel()].view(hidden.shape) >= round(0.4 * 2**16) - 2**15
                hidden = hidden * kept / (1 - round(0.4 * 2**16) / 2**16)
            return self.head(hidden)

    ours, theirs = local(Overfitting(), noise(), dropout_v=0.4), local(Dropping(), noise())
    a, b = trained(ours), trained(theirs)
    assert max(float((a[n] - b[n]).abs().max()) for n in a) < 1e-12
    plain = trained(local(Overfitting(), noise()))
    assert not a.equal(plain)


def test_dropout_is_off_where_nothing_personal_is_trained_and_after_the_phase():
    task, plain = local(Overfitting(), noise(), dropout_v=0.9), local(Overfitting(), noise())
    assert trained(task, block="shared").equal(trained(plain, block="shared"))
    trained(task)
    plain.network.load(task.network.read(task.network.split.personal))
    assert task.network.predict(task.train).equal(plain.network.predict(task.train))
    module = task.network.module.train()
    assert module(*task.train.inputs).equal(module(*task.train.inputs)), "nothing is left behind"


def test_the_residual_of_the_xi_rule_is_without_dropout():
    task = local(Overfitting(), noise(), dropout_v=0.5, weight_decay=0.1)
    found = trained(task, UntilStationary(1e-30, 3))
    body = task.network.read(task.network.split.shared)
    assert task.log[0].residual == pytest.approx(task.gradient(found, fixed=body).sq())


def test_an_error_in_training_leaves_no_dropout_behind():
    module = Overfitting()
    with pytest.raises(RuntimeError), dropout_before(module, ("head",), 0.5):
        raise RuntimeError
    assert not module.head._forward_pre_hooks


def test_layers_are_those_with_weights_and_not_norms_biases_or_the_network_itself():
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
    names = [n for n, _ in module.named_parameters()]
    assert layers_of(module, names) == ("0", "3")
    assert layers_of(module, [n for n in names if n.endswith("bias")]) == ()
    of_gru = ("acc_gru.weight_ih_l0", "acc_gru.weight_hh_l0", "fc2.weight")
    assert layers_of(HARClassifier(), of_gru) == ("acc_gru", "fc2")
    assert layers_of(Rooted(), ("weight",)) == ()


class Rooted(nn.Module):
    """A network that owns its weights itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 2))


class Words(nn.Module):
    """A personal embedding, whose inputs are numbers of words and cannot be dropped."""

    stages: ClassVar = {"input": ("words",)}
    forward_steps: ClassVar = (Step("out", ("x",), ("words", "head")),)

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)

    def out(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


def test_inputs_that_are_no_real_numbers_are_not_dropped():
    samples = Samples((torch.randint(0, 9, (12, 5), generator=torch.Generator().manual_seed(0)),), torch.arange(12) % 3)
    torch.manual_seed(0)
    module = Words()
    twin = Words()
    twin.load_state_dict(module.state_dict())
    a, b = (trained(local(m, samples, ("words",), **o)) for m, o in ((module, {"dropout_v": 0.5}), (twin, {})))
    assert a.equal(b)


PICTURES = Samples((torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(0)),), torch.arange(40) % 10)
ROWS = Samples((torch.randn(40, 64, generator=torch.Generator().manual_seed(0)),), torch.arange(40) % 10)
SIGNALS = Samples(
    tuple(torch.randn(20, 3, 16, generator=torch.Generator().manual_seed(k)) for k in range(2)), torch.arange(20) % 8
)


@pytest.mark.parametrize(
    ("make", "personal", "samples"),
    [
        (lambda: CNN(size=16), ("fc1", "fc2"), PICTURES),
        (DigitsNet, ("head",), ROWS),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10)), ("3",), ROWS),
        (HARClassifier, ("gyro_gru", "fc2"), SIGNALS),
    ],
)
@pytest.mark.parametrize("more", [{}, {"validation_v": 0.3}, {"prior_v": 0.1}])
def test_on_kept_features_dropout_is_the_same(make, personal, samples, more, monkeypatch):
    """Features that are computed once are those from before the dropout."""

    def run(cached: bool) -> tuple[Vec, list[object]]:
        torch.manual_seed(3)
        task, splits, original = local(make(), samples, personal, dropout_v=0.5, **more), [], Network.cut

        def cut(self, names, data):
            splits.append(original(self, names, data))
            return splits[-1] if cached else None

        with monkeypatch.context() as patch:
            patch.setattr(Network, "cut", cut)
            return trained(task, Epochs(3)), splits

    (kept, splits), (computed, _) = run(True), run(False)
    assert splits
    assert all(split is not None for split in splits)
    assert max(float((kept[n] - computed[n]).abs().max()) for n in kept) < 1e-5


def test_draws_are_those_of_a_client_and_round():
    def once(client: int, round: int) -> Vec:
        task = local(Overfitting(), noise(), dropout_v=0.5, batch_size=0)
        made = LocalTask(task.network, task.train, task.solver, 3, client, round)
        return made.minimize(task.network.read(task.network.split.personal), stop=Epochs(1))

    torch.manual_seed(1)
    first = once(0, 1)
    torch.manual_seed(2)
    assert first.equal(once(0, 1)), "whatever the global generator was at"
    assert not first.equal(once(1, 1))
    assert not first.equal(once(0, 2))


def test_train_takes_them_as_keywords():
    import fedapm
    from tests.helpers.unit import blob_clients, two_layers

    quick = {"rounds": 1, "fraction": 1.0, "epochs": 4, "personal": ["head"], "algorithm": "fedalt"}
    results = [
        fedapm.train(blob_clients(), two_layers(), **quick, **more).history["train_loss"].iloc[-1]
        for more in ({}, {"prior_v": 5.0}, {"dropout_v": 0.5}, {"validation_v": 0.3})
    ]
    assert len(set(results)) == 4
    with refused("solver.dropout_v", "less than 1"):
        fedapm.train(blob_clients(), two_layers(), **quick, dropout_v=1.5)
