"""The local solver against finite differences, torch's optimiser and its own stop rules."""

from functools import partial
from itertools import pairwise

import pytest
import torch

import fedapm
from fedapm import FedAPM, FedAvg, Local
from fedapm.core.solver import Epochs, Prox, SGDConfig, UntilStationary
from fedapm.core.vec import Vec
from fedapm.data import Federation
from fedapm.errors import FedapmError
from fedapm.simulation.callbacks import History
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from tests.helpers.problems import convex
from tests.helpers.running import play
from tests.helpers.unit import blob_clients, two_layers


@pytest.fixture(scope="module")
def known():
    return convex("logistic")


def vec(*values: float) -> Vec:
    return Vec({"u": torch.tensor(values, dtype=torch.float64)})


LINEAR, CENTRE, POINT = vec(0.3, -0.2, 0.5), vec(1.0, 0.0, -1.0), vec(0.2, 0.4, -0.6)


def task_of(known, client=1, **options):
    options.setdefault("weight_decay", 0.05)
    return known.problem(FedAPM(), SGDConfig(batch_size=0, **options)).task(client, 1)


def objective(task, u: Vec, v: Vec, weight: float, rho: float) -> float:
    gap = u - CENTRE
    return weight * (task.value(u, v) - 0.025 * v.sq()) + LINEAR @ u + 0.5 * rho * gap.sq()


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_a_step_follows_the_gradient_of_the_whole_objective(known, weight):
    """p − lr·(α(∇f + λp) + ℓ + w(p − c)), where the gradient is found by finite differences."""
    task, rho, lr, h = task_of(known), 0.7, 0.1, 1e-6
    v = Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    slope = []
    for j in range(3):
        shift = Vec({"u": torch.eye(3, dtype=torch.float64)[j] * h})
        up, down = objective(task, POINT + shift, v, weight, rho), objective(task, POINT - shift, v, weight, rho)
        slope.append((up - down) / (2 * h))
    found = task.minimize(POINT, fixed=v, weight=weight, linear=LINEAR, prox=Prox(rho, CENTRE), stop=Epochs(1), lr=lr)
    expected = POINT["u"] - lr * torch.tensor(slope, dtype=torch.float64)
    torch.testing.assert_close(found["u"], expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("decay_v", [None, 0.4])
def test_full_gradient_matches_finite_differences_in_both_blocks(known, decay_v):
    task, h = task_of(known, weight_decay_v=decay_v), 1e-6
    v = Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    gradient = task.gradient(POINT | v)
    for name, size in (("u", 3), ("v", 2)):
        for j in range(size):
            shift = (POINT | v).zeros()
            shift[name][j] += h
            slope = (task.value((POINT | v) + shift) - task.value((POINT | v) - shift)) / (2 * h)
            assert gradient[name][j].item() == pytest.approx(slope, abs=1e-7)


def test_momentum_and_terms_match_torch_sgd(known):
    """Five steps with momentum against torch.optim.SGD on the objective written as a graph."""
    task, rho, lr = task_of(known, momentum=0.9), 0.7, 0.05
    v = Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    found = task.minimize(POINT, fixed=v, weight=0.5, linear=LINEAR, prox=Prox(rho, CENTRE), stop=Epochs(5), lr=lr)
    u = POINT["u"].clone().requires_grad_(True)
    optimiser = torch.optim.SGD([u], lr=lr, momentum=0.9)
    x, w = task.train.inputs
    for _ in range(5):
        optimiser.zero_grad()
        f = known.loss(x @ u + w @ v["v"], task.train.targets) + 0.025 * (u @ u)
        (0.5 * f + LINEAR["u"] @ u + 0.5 * rho * ((u - CENTRE["u"]) ** 2).sum()).backward()
        optimiser.step()
    torch.testing.assert_close(found["u"], u.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("weight", "decay_v"), [(1.0, 0.4), (0.25, 0.0)])
def test_an_l2_term_of_the_personal_part_is_torchs_parameter_group(known, momentum, weight, decay_v):
    """Both parts trained at once against torch.optim.SGD with a group for each, which weighs its decay itself."""
    task, lr = task_of(known, momentum=momentum, weight_decay=0.05, weight_decay_v=decay_v), 0.05
    start = POINT | Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    found = task.minimize(start, weight=weight, stop=Epochs(5), lr=lr)
    u, v = (start[n].clone().requires_grad_(True) for n in "uv")
    groups = [{"params": [u], "weight_decay": weight * 0.05}, {"params": [v], "weight_decay": weight * decay_v}]
    optimiser = torch.optim.SGD(groups, lr=lr, momentum=momentum)
    x, w = task.train.inputs
    for _ in range(5):
        optimiser.zero_grad()
        (weight * known.loss(x @ u + w @ v, task.train.targets)).backward()
        optimiser.step()
    torch.testing.assert_close(found["u"], u.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(found["v"], v.detach(), rtol=0, atol=1e-12)


def test_the_xi_rule_sees_the_l2_term_of_the_personal_part(known):
    task = task_of(known, lr=0.2, weight_decay_v=0.4)
    start = POINT | Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    found = task.minimize(start, stop=UntilStationary(1e-12, 2000))
    assert task.log[0].residual <= 1e-12
    assert task.gradient(found).sq() <= 1.01e-12


def test_without_a_personal_part_its_l2_term_is_nobodys(known):
    """FedAvg shares everything, local training nothing."""
    solver = SGDConfig(batch_size=0, weight_decay=0.05, weight_decay_v=0.4)
    assert known.problem(FedAvg(), solver).task(1, 1).decay(("u", "v")) == 0.05
    assert known.problem(Local(), solver).task(1, 1).decay(("u", "v")) == 0.4
    assert known.problem(FedAPM(), solver).task(1, 1).decay(("u", "v")) == {"u": 0.05, "v": 0.4}


def test_the_given_block_and_frozen_parameters_stay(known):
    task = task_of(known)
    v = Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    task.minimize(POINT, fixed=v, stop=Epochs(3))
    assert task.network.read(("v",)).equal(v)


def test_nothing_to_minimise_draws_nothing(known):
    one, two = task_of(known), task_of(known)
    one.minimize(Vec(), fixed=POINT)
    a, b = (t.minimize(POINT, fixed=Vec({"v": torch.zeros(2, dtype=torch.float64)})) for t in (one, two))
    assert a.equal(b)


def residual(task, u, v, weight, rho):
    return (weight * task.gradient(u, fixed=v) + LINEAR + rho * (u - CENTRE)).sq()


@pytest.mark.parametrize("xi", [1e-2, 1e-5, 1e-10])
def test_approximate_rule_is_honoured_and_recorded(known, xi):
    task, rho = task_of(known, lr=0.3), 0.7
    v = Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    u = task.minimize(POINT, fixed=v, linear=LINEAR, prox=Prox(rho, CENTRE), stop=UntilStationary(xi, 500))
    (log,) = task.log
    assert log.xi == xi
    assert log.residual <= xi
    assert residual(task, u, v, 1.0, rho) == pytest.approx(log.residual, rel=1e-6)
    assert residual(task, POINT, v, 1.0, rho) > xi


def test_smaller_xi_takes_more_epochs(known):
    v = Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    epochs = []
    for xi in (1e-1, 1e-3, 1e-6):
        task = task_of(known, lr=0.3)
        task.minimize(POINT, fixed=v, linear=LINEAR, prox=Prox(0.7, CENTRE), stop=UntilStationary(xi, 500))
        epochs.append(task.log[0].epochs)
    assert epochs[0] < epochs[1] < epochs[2]


def test_the_cap_on_epochs_holds_and_the_miss_is_recorded(known):
    method = FedAPM(rho=0.5, xi=1e-12, mu=0.5, max_epochs=2)
    problem = known.problem(method, SGDConfig(lr=0.1, batch_size=0, weight_decay=0.05))
    memory = History()
    play(problem, method, Schedule(1, Sampling(1.0)), [memory])
    local = memory.records[1]["local"]
    assert local["epochs"] == 4
    assert local["missed"] == len(known.federation)
    assert local["residual"] > local["xi"] == 0.5e-12


def test_xi_shrinks_by_mu_only_for_those_who_take_part(known):
    method = FedAPM(rho=0.5, xi=0.4, mu=0.5, max_epochs=3)
    problem = known.problem(method, SGDConfig(lr=0.1, batch_size=0))
    memory = History()
    progress, _ = play(problem, method, Schedule(6, Sampling(count=2)), [memory])
    for k in range(len(known.federation)):
        times = sum(k in record["selected"] for record in memory.records)
        assert progress.store.get(k).state.xi == pytest.approx(0.4 * 0.5**times)


def test_schedules_change_the_step_from_round_to_round():
    constant, exponential, cosine = (
        SGDConfig(lr_schedule=kind, lr_decay=0.9) for kind in ("constant", "exponential", "cosine")
    )
    assert [constant.schedule(t, 10) for t in range(3)] == [1, 1, 1]
    assert [exponential.schedule(t, 10) for t in range(3)] == pytest.approx([1, 0.9, 0.81])
    falling = [cosine.schedule(t, 10) for t in range(11)]
    assert falling[0] == 1
    assert falling[-1] == pytest.approx(0)
    assert all(a > b for a, b in pairwise(falling))


def test_a_run_uses_the_schedule(known):
    base = known.problem(FedAPM(), SGDConfig(lr=0.2, lr_schedule="exponential", lr_decay=0.5), rounds=5)
    assert [base.task(0, t).lr_factor for t in (1, 2, 3)] == [1, 0.5, 0.25]


def test_adamw_without_terms_is_torchs_own(known):
    """Twelve steps in three epochs of one client, with weight decay; every batch in the order that the task draws."""
    task = known.problem(FedAPM(), SGDConfig(batch_size=10, optimizer="adamw", weight_decay=0.05)).task(1, 1)
    v = Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    found = task.minimize(POINT, fixed=v, stop=Epochs(3), lr=0.05)
    order = known.problem(FedAPM(), SGDConfig(batch_size=10)).task(1, 1)
    u = POINT["u"].clone().requires_grad_(True)
    optimizer = torch.optim.AdamW([u], lr=0.05, weight_decay=0.05)
    for batch in order.batches(3):
        x, w = batch.inputs
        optimizer.zero_grad()
        known.loss(x @ u + w @ v["v"], batch.targets).backward()
        optimizer.step()
    torch.testing.assert_close(found["u"], u.detach(), rtol=1e-12, atol=1e-12)


def test_terms_stand_beside_adamws_direction(known):
    """One step is p − lr·(α·sign(∇f) + ℓ + w(p − c)): the first direction of AdamW is the gradient's sign."""
    task = task_of(known, optimizer="adamw", weight_decay=0.0)
    v = Vec({"v": torch.tensor([0.1, -0.3], dtype=torch.float64)})
    sign = task.gradient(POINT, fixed=v).map(torch.sign)
    found = task.minimize(POINT, fixed=v, weight=0.5, linear=LINEAR, prox=Prox(0.7, CENTRE), stop=Epochs(1), lr=0.1)
    expected = POINT - 0.1 * (0.5 * sign + LINEAR + 0.7 * (POINT - CENTRE))
    torch.testing.assert_close(found["u"], expected["u"], rtol=0, atol=1e-6)


def test_a_gradient_in_parts_is_the_same_step(known):
    steps = []
    for parts in (None, 3):
        task = task_of(known, accumulate=parts, optimizer="adamw", clip_norm=0.5)
        steps.append(task.minimize(POINT, fixed=Vec({"v": torch.zeros(2, dtype=torch.float64)}), stop=Epochs(4)))
    torch.testing.assert_close(steps[0]["u"], steps[1]["u"], rtol=1e-9, atol=1e-9)


def test_a_gradient_is_clipped_to_its_length(known):
    task, v = task_of(known, clip_norm=0.01, weight_decay=0.0), Vec({"v": torch.zeros(2, dtype=torch.float64)})
    moved = task.minimize(POINT, fixed=v, stop=Epochs(1), lr=1.0) - POINT
    gradient = task.gradient(POINT, fixed=v)
    assert moved.norm() == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(moved["u"], -0.01 / gradient.norm() * gradient["u"], rtol=1e-3, atol=0)


def test_the_step_size_rises_and_then_follows_its_schedule():
    warm = SGDConfig(warmup=3, lr_schedule="exponential", lr_decay=0.5)
    assert [warm.schedule(k, 10) for k in range(5)] == [0.25, 0.25, 0.1875, 0.125, 0.0625]
    assert SGDConfig(warmup=1).schedule(0, 10) == 0.5


def test_bfloat16_trains_float32_parameters():
    federation = Federation.from_clients({0: (torch.randn(20, 4), torch.arange(20) % 2)})
    problem = Problem(federation, lambda: torch.nn.Linear(4, 2), solver=SGDConfig(precision="bfloat16"))
    exact = Problem(federation, lambda: torch.nn.Linear(4, 2))
    found, wanted = (p.task(0, 1).minimize(p.u0) for p in (problem, exact))
    assert found["weight"].dtype == torch.float32
    assert 0 < (found - wanted).norm() < 0.05 * wanted.norm()


def test_the_xi_rule_is_refused_with_adamw(known):
    task = task_of(known, optimizer="adamw")
    with pytest.raises(FedapmError, match="ξ-rule"):
        task.minimize(POINT, fixed=Vec({"v": torch.zeros(2, dtype=torch.float64)}), stop=UntilStationary(1e-3, 5))


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"optimizer": "adamw", "momentum": 0.9}, "running mean of its own"), ({"keep_state": True}, "nothing to keep")],
)
def test_settings_that_contradict_each_other(settings, said):
    with pytest.raises(FedapmError, match=said):
        SGDConfig(**settings)


@pytest.mark.parametrize("name", ["fedapm", "ditto", "pfedme"])
def test_kept_running_means_go_on_and_survive_a_checkpoint(name, tmp_path):
    """A run that is resumed after two of four rounds is that which was not; without keeping, rounds differ."""
    how = {"algorithm": name, "optimizer": "adamw", "lr": 0.01, "epochs": 1, "count": 3, "checkpoint_every": 1}
    how |= {"personal": ["head"], "progress": False}
    train = partial(fedapm.train, blob_clients(4), two_layers, **how)
    whole = train(rounds=4, keep_state=True)
    train(rounds=2, keep_state=True, out=tmp_path / "run")
    resumed = train(rounds=4, keep_state=True, out=tmp_path / "run", resume=True)
    anew = train(rounds=4)
    models = [run.state_dict(whole.clients[0]) for run in (whole, resumed, anew)]
    assert all(torch.equal(t, models[1][n]) for n, t in models[0].items())
    assert any(not torch.equal(t, models[2][n]) for n, t in models[0].items())


def test_many_clients_at_once_say_why_they_are_not(caplog):
    with caplog.at_level("INFO", "fedapm"):
        together = fedapm.train("digits", optimizer="adamw", lr=0.01, rounds=1, count=2, engine="vectorized")
    alone = fedapm.train("digits", optimizer="adamw", lr=0.01, rounds=1, count=2, engine="sequential")
    assert "solver.optimizer" in caplog.text
    assert all(torch.equal(t, alone.state_dict("3")[n]) for n, t in together.state_dict("3").items())
