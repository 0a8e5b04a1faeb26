"""A hand-computed step or a limit for each of the other published methods."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedapm import FedapmError
from fedapm.algorithms import (
    PRESETS,
    Ditto,
    FedADMM,
    FedALA,
    FedAlt,
    FedAPM,
    FedAvg,
    FedCP,
    FedPer,
    FedRep,
    FedRoD,
    FedSim,
    LGFedAvg,
    Local,
    LpProj,
    PFedMe,
    Scaffold,
)
from fedapm.algorithms.fedcp import discrepancy
from fedapm.algorithms.fedrod import balanced
from fedapm.algorithms.heads import Conditional, TwoHeads
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.core.vec import Vec
from fedapm.data import Dirichlet
from fedapm.data.sets.digits import federation
from fedapm.models import CNN, DigitsNet
from fedapm.simulation.problem import Problem
from tests.helpers.problems import convex, run

FULL_BATCH = SGDConfig(lr=0.1, epochs=3, batch_size=0)


@pytest.fixture(scope="module")
def clients():
    return federation(Dirichlet(5, 1.0, 30), test_fraction=0.2, seed=0)


def digits(clients, method, solver=None, model=DigitsNet) -> Problem:
    solver = solver or SGDConfig(lr=0.1, epochs=2, batch_size=16)
    return Problem(clients, model, SplitRule(preset="output"), adapt=method.adapt, solver=solver)


def close(a: Vec, b: Vec, atol: float = 1e-6) -> None:
    assert set(a) == set(b)
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], rtol=1e-5, atol=atol)


@pytest.mark.parametrize("start", ["shared", "local"])
def test_fedadmm_is_fedapm_with_nothing_personal(clients, start):
    admm = FedADMM(rho=0.1, start=start)
    apm = FedAPM(rho=0.1, sigma=0.5, u_start=start, evaluate="shared")
    a, first = run(digits(clients, admm), admm, 4, 0.5)
    whole = Problem(clients, DigitsNet, SplitRule(), adapt=apm.adapt, solver=SGDConfig(lr=0.1, epochs=2, batch_size=16))
    b, second = run(whole, apm, 4, 0.5)
    assert a.server.u.equal(b.server.u)
    for k in range(len(clients)):
        assert a.store.get(k).state.w.equal(b.store.get(k).state.u)
        assert a.store.get(k).state.pi.equal(b.store.get(k).state.pi)
    assert first[-1]["evaluations"] == second[-1]["evaluations"]


def test_pfedme_step_by_hand():
    """One batch, K = 1: θ = w − lr(∇f(w) + λ·0), w' = w − ηλ(w − θ)."""
    known = convex("quadratic", p=0)
    method = PFedMe(lam=3.0, k=1, eta=0.2)
    task = known.problem(method, SGDConfig(lr=0.1, epochs=1, batch_size=0)).task(0, 1)
    w = Vec({"u": torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64)})
    reply = method.client_update(method.server_init(w), method.client_init(w, Vec()), task)
    (x, _), y = task.train.inputs, task.train.targets
    theta = w["u"] - 0.1 * x.T @ (x @ w["u"] - y) / len(y)
    torch.testing.assert_close(reply.state.theta["u"], theta)
    torch.testing.assert_close(reply.u["u"], w["u"] - 0.2 * 3.0 * (w["u"] - theta))


def test_pfedme_with_an_infinite_lambda_is_gradient_descent():
    """λ(w − θ(w)) → ∇f(w): each local step becomes a gradient step of size η, and θ becomes w."""
    known = convex("quadratic", p=0)
    lam = 1e5
    method = PFedMe(lam=lam, k=60, eta=0.05)
    progress, _ = run(known.problem(method, SGDConfig(lr=0.5 / lam, epochs=4, batch_size=0)), method, 3)
    plain, _ = run(known.problem(FedAvg(), SGDConfig(lr=0.05, epochs=4, batch_size=0)), FedAvg(), 3)
    close(progress.server.u, plain.server.u, atol=1e-4)
    for k in range(len(known.federation)):
        assert progress.store.get(k).state.theta.is_finite()


def test_pfedme_server_mixes_by_beta(clients):
    whole, half = PFedMe(beta=1.0), PFedMe(beta=0.5)
    a, _ = run(digits(clients, whole), whole, 1)
    b, _ = run(digits(clients, half), half, 1)
    start = digits(clients, half).u0
    close(b.server.u, 0.5 * (start + a.server.u))


def test_ditto_with_lambda_zero_is_fedavg_and_local_training(clients):
    """On full batches, where both see the same gradients in whatever order batches are drawn."""
    ditto = Ditto(lam=0.0)
    a, _ = run(digits(clients, ditto, FULL_BATCH), ditto, 4, 0.6)
    g, _ = run(digits(clients, FedAvg(), FULL_BATCH), FedAvg(), 4, 0.6)
    p, _ = run(digits(clients, Local(), FULL_BATCH), Local(), 4, 0.6)
    close(a.server.u, g.server.u)
    for k in range(len(clients)):
        close(a.store.get(k).state.v, p.store.get(k).state.v, atol=1e-5)


def test_ditto_with_a_large_lambda_follows_the_global_model(clients):
    loose, tight = Ditto(lam=0.0), Ditto(lam=9.0)
    gaps = []
    for method in (loose, tight):
        progress, _ = run(digits(clients, method), method, 6)
        gaps.append((progress.store.get(0).state.v - progress.server.u).norm())
    assert gaps[1] < 0.5 * gaps[0]


def test_scaffold_of_one_client_is_sgd(clients):
    alone = type(clients)([clients[0]])
    a, _ = run(digits(alone, Scaffold()), Scaffold(), 4)
    b, _ = run(digits(alone, FedAvg()), FedAvg(), 4)
    close(a.server.u, b.server.u, atol=1e-5)


def test_scaffold_control_variates_by_hand():
    """First round, everybody, full batch: c_i is the mean gradient along client i's path, c their mean."""
    known = convex("quadratic", p=0)
    method = Scaffold()
    problem = known.problem(method, SGDConfig(lr=0.1, epochs=3, batch_size=0))
    progress, _ = run(problem, method, 1)
    summed = torch.zeros(known.d, dtype=torch.float64)
    for k, client in enumerate(known.federation.clients):
        (x, _), y = client.train.inputs, client.train.targets
        u, gradients = problem.u0["u"].clone(), []
        for _ in range(3):
            gradients.append(x.T @ (x @ u - y) / len(y))
            u = u - 0.1 * gradients[-1]
        c = torch.stack(gradients).mean(0)
        torch.testing.assert_close(progress.store.get(k).state.c["u"], c)
        summed += c
    torch.testing.assert_close(progress.server.c["u"], summed / len(known.federation))


def test_scaffold_finds_the_solution_that_fedavg_misses():
    known = convex("quadratic", p=0)
    solver = SGDConfig(lr=0.05, epochs=10, batch_size=0, weight_decay=known.ridge)
    truth = torch.from_numpy(known.u)
    gaps = []
    for method, rounds in ((Scaffold(), 150), (FedAvg(), 40)):
        progress, _ = run(known.problem(method, solver), method, rounds)
        gaps.append((progress.server.u["u"] - truth).norm().item())
    assert gaps[0] < 1e-6
    assert gaps[1] > 1e-2


def test_projection_has_orthonormal_rows_and_matches_its_matrix():
    x = Vec({"a": torch.randn(4, 3, dtype=torch.float64), "b": torch.randn(5, dtype=torch.float64)})
    for dimension in (1, 4, 17):
        P = LpProj(dimension=dimension).projection(x)
        columns = []
        for j in range(x.numel):
            flat = torch.zeros(x.numel, dtype=torch.float64)
            flat[j] = 1
            e = Vec({"a": flat[:12].reshape(4, 3), "b": flat[12:]})
            columns.append((P @ e)["projection"])
        dense = torch.stack(columns, dim=1)
        torch.testing.assert_close(dense @ dense.T, torch.eye(dimension, dtype=torch.float64))
        w = Vec({"projection": torch.randn(dimension, dtype=torch.float64)})
        lifted = torch.cat([t.flatten() for t in P.lift(w, like=x).values()])
        torch.testing.assert_close(lifted, dense.T @ w["projection"])


def test_lp_proj_with_a_square_projection_is_coupled_like_ditto():
    """‖P x − w‖ = ‖x − Pᵀw‖ for an orthonormal square P: each step is one on f + λ/2·‖x − Pᵀw‖²."""
    known = convex("quadratic", p=0)
    method = LpProj(lam=0.7, dimension=known.d)
    task = known.problem(method, SGDConfig(lr=0.1, epochs=5, batch_size=0)).task(1, 1)
    x = Vec({"u": torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64)})
    broadcast = method.server_init(Vec({"u": torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)}))
    reply = method.client_update(broadcast, method.client_init(x, Vec()), task)
    center = method.projection(x).lift(broadcast.w, like=x)
    torch.testing.assert_close(center["u"], torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64))
    other = known.problem(method, SGDConfig(lr=0.1, epochs=5, batch_size=0)).task(1, 1)
    from fedapm.core.task import Prox

    close(reply.state.x, other.minimize(x, prox=Prox(0.7, center)), atol=1e-12)


def test_lp_proj_sends_only_the_low_dimensional_vector(clients):
    method = LpProj(dimension=50)
    _, records = run(digits(clients, method), method, 1)
    assert records[1]["bytes_up"] == len(clients) * (50 * 4 + 8)
    assert records[1]["bytes_down"] == len(clients) * 50 * 4


def test_fedala_with_all_weights_one_is_a_plain_download(clients):
    ala = FedALA(eta=0.0, start_epochs=1)
    a, _ = run(digits(clients, ala, FULL_BATCH), ala, 4, 0.6)
    b, _ = run(digits(clients, FedAvg(), FULL_BATCH), FedAvg(), 4, 0.6)
    close(a.server.u, b.server.u, atol=1e-5)
    assert all((a.store.get(k).state.w["head.weight"] == 1).all() for k in range(len(clients)))


def test_fedala_learns_weights_in_the_unit_interval_for_the_top_layers_only(clients):
    ala = FedALA(eta=5.0, p=2)
    progress, _ = run(digits(clients, ala), ala, 3)
    w = progress.store.get(0).state.w
    assert set(w) == {"body.weight", "body.bias", "head.weight", "head.bias"}
    values = torch.cat([t.flatten() for t in w.values()])
    assert values.min() >= 0
    assert values.max() <= 1
    assert (values < 1).any()


def test_fedala_weight_step_by_hand():
    """W − η·∇f(Θ̂) ⊙ (Θ − Θ_i), clipped."""
    known = convex("quadratic", p=0)
    method = FedALA(eta=0.3, s=1.0, start_epochs=1)
    task = known.problem(method, SGDConfig(lr=0.1, epochs=0, batch_size=0)).task(0, 1)
    mine, shared = (Vec({"u": torch.tensor(v, dtype=torch.float64)}) for v in ([0.0, 0.0, 0.0], [0.5, -0.5, 0.2]))
    state = replace_theta(method.client_init(shared, Vec()), mine)
    reply = method.client_update(method.server_init(shared), state, task)
    (x, _), y = task.train.inputs, task.train.targets
    gap = shared["u"] - mine["u"]
    slope = x.T @ (x @ shared["u"] - y) / len(y) * gap
    w = (torch.ones(3, dtype=torch.float64) - 0.3 * slope).clamp(0, 1)
    torch.testing.assert_close(reply.state.w["u"], w)
    torch.testing.assert_close(reply.u["u"], mine["u"] + gap * w)


def replace_theta(state, theta):
    return state.replace(theta=theta)


def test_fedrod_with_its_personal_head_at_zero_predicts_by_its_generic_path():
    network = DigitsNet()
    x = torch.randn(7, 64)
    expected = network(x)
    wide = TwoHeads(network, "FedRoD").eval()
    torch.testing.assert_close(wide(x), expected)
    assert {n for n, _ in wide.named_parameters()} == {
        *(n for n, _ in DigitsNet().named_parameters()),
        "personal_head.weight",
        "personal_head.bias",
    }


def test_fedrod_personal_loss_leaves_no_trace_in_what_is_shared():
    wide = TwoHeads(DigitsNet(), "FedRoD").train()
    with torch.no_grad():
        wide.personal_head.weight.normal_()
    _, both = wide(torch.randn(9, 64))
    cross_entropy(both, torch.randint(0, 10, (9,))).backward()
    for name, parameter in wide.named_parameters():
        touched = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert touched == name.startswith("personal_head."), name


def test_balanced_loss_by_hand():
    """Each score is raised by the logarithm of its class's count before the softmax."""
    targets = torch.tensor([0, 0, 0, 1])
    generic, both = torch.randn(4, 3), torch.randn(4, 3)
    counts = torch.tensor([3.0, 1.0, 0.0])
    weighted = counts * generic.exp()
    by_hand = -(weighted[range(4), targets] / weighted.sum(1)).log().mean()
    found = balanced(torch.stack([generic, both]), targets, counts)
    torch.testing.assert_close(found, by_hand + cross_entropy(both, targets))


def test_fedcp_shares_sum_to_one_and_gradients_reach_the_policy():
    wide = Conditional(DigitsNet(), "FedCP").train()
    with torch.no_grad():
        wide.personal_head.weight.add_(torch.randn_like(wide.personal_head.weight))
    x, y = torch.randn(12, 64), torch.randint(0, 10, (12,))
    personal, shared = wide.shares(wide.features(x))
    torch.testing.assert_close(personal + shared, torch.ones_like(personal))
    assert (personal != 0.5).any()
    FedCP().loss(wide(x), y).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in wide.policy.parameters())
    assert all(p.grad is None for p in wide.anchor.parameters())


def test_fedcp_keeps_the_global_head_fixed_and_sends_the_middle(clients):
    method = FedCP()
    problem = digits(clients, method)
    broadcast = method.server_init(problem.u0)
    state = method.client_init(problem.u0, problem.start(0).v0)
    reply = method.client_update(broadcast, state, problem.task(0, 1))
    middle = 0.5 * (reply.state.p["personal_head.weight"] + problem.u0["head.weight"])
    torch.testing.assert_close(reply.u["head.weight"], middle)
    anchor = problem.network(0).read(("anchor.stem.weight",))
    assert torch.equal(anchor["anchor.stem.weight"], problem.u0["stem.weight"])


def test_discrepancy_is_zero_for_equal_samples_and_grows_with_distance():
    x = torch.randn(20, 4, dtype=torch.float64)
    assert discrepancy(x, x).abs() < 1e-12
    near, far = discrepancy(x, x + 0.5), discrepancy(x, x + 5.0)
    assert 0 < near < far
    one, two = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64)
    by_hand = sum(2 - 2 * torch.exp(torch.tensor(-4 / (2 * b), dtype=torch.float64)) for b in (10, 15, 20, 50))
    torch.testing.assert_close(discrepancy(one, two), by_hand)


@pytest.mark.parametrize("method", [FedRoD(), FedCP()])
def test_networks_that_do_not_name_their_head_are_refused_clearly(clients, method):
    def plain() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 10))

    with pytest.raises(FedapmError, match=r"names its head: Sequential should have a class attribute stages"):
        Problem(clients, plain, SplitRule(), adapt=method.adapt, solver=FULL_BATCH)


@pytest.mark.parametrize("method", [FedRoD(), FedCP()])
def test_wrapping_works_for_the_convolutional_network(method):
    wide, split = method.adapt(CNN(), SplitRule(preset="output").apply(CNN()))
    x = torch.randn(2, 3, 32, 32)
    assert wide.eval()(x).shape == (2, 10)
    assert set(split.personal) == {"personal_head.weight", "personal_head.bias"}
    assert {"conv1.weight", "fc1.weight", "fc2.weight"} <= set(split.shared)


@pytest.mark.parametrize(
    ("preset", "method", "stage"),
    [(FedPer(), FedSim(), "output"), (FedRep(), FedAlt(), "output"), (LGFedAvg(), FedSim(), "input")],
)
def test_presets_are_their_method_with_their_split(clients, preset, method, stage):
    """Whatever split the experiment asks for."""
    solver = SGDConfig(lr=0.1, epochs=1, batch_size=16)
    a, _ = run(Problem(clients, DigitsNet, SplitRule(), adapt=preset.adapt, solver=solver), preset, 3, 0.6)
    rule = SplitRule(preset=stage)
    b, _ = run(Problem(clients, DigitsNet, rule, adapt=method.adapt, solver=solver), method, 3, 0.6)
    assert a.server.u.equal(b.server.u)
    assert set(PRESETS) == {"fedapm-paper", "fedper", "fedrep", "lg-fedavg"}


def test_learning_rate_schedules_reach_methods_with_their_own_steps(clients):
    """pFedMe's outer step and SCAFFOLD's variates use the step size of the round."""
    falling = SGDConfig(lr=0.1, epochs=1, batch_size=0, lr_schedule="exponential", lr_decay=0.5)
    task = digits(clients, Scaffold(), falling).task(0, 3)
    assert task.step_size() == pytest.approx(0.025)
    assert task.lr_factor == 0.25
