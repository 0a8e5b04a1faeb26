"""FedAPM's server, its ρ and its presets: where they must agree with each other and with other methods."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from fedapm import FedADMM, FedAlt, FedAPM, FedAPMPaper, Federation, FedSim
from fedapm.core.algorithm import State
from fedapm.core.solver import Prox, SGDConfig, UntilStationary
from fedapm.core.split import SplitRule
from fedapm.core.vec import Vec, mean
from fedapm.data import Dirichlet
from fedapm.data.clients import ClientData
from fedapm.data.sets.digits import federation
from fedapm.models import DigitsNet
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.problem import Problem, Weighting
from tests.helpers.problems import convex, run

SOLVER = SGDConfig(lr=0.1, epochs=2, batch_size=16)


@pytest.fixture(scope="module")
def clients():
    return federation(Dirichlet(6, 1.0, 20), test_fraction=0.2, seed=0)


def digits(clients, method, rule=None, solver=SOLVER, **options) -> Problem:
    return Problem(clients, DigitsNet, rule or SplitRule(preset="output"), adapt=method.adapt, solver=solver, **options)


def close(a: Vec, b: Vec, atol: float = 1e-6) -> None:
    for name, tensor in b.items():
        torch.testing.assert_close(a[name], tensor, rtol=1e-5, atol=atol)


def test_without_a_penalty_it_is_fedalt_however_few_take_part(clients):
    apm = FedAPM(rho=0.0, sigma=0.0)
    a, records = run(digits(clients, apm), apm, 4, 0.5)
    b, _ = run(digits(clients, FedAlt()), FedAlt(), 4, 0.5)
    assert len(records[1]["selected"]) == 3
    close(a.server.u, b.server.u)
    for k in range(len(clients)):
        close(a.store.get(k).state.v, b.store.get(k).state.v, 1e-5)


def test_with_little_penalty_and_as_little_of_h_it_is_nearly_fedalt(clients):
    gaps = []
    for kappa in (0.1, 0.00001):
        apm = FedAPM(kappa=kappa, theta=kappa, sigma=0.0)
        a, _ = run(digits(clients, apm), apm, 4, 0.5)
        b, _ = run(digits(clients, FedAlt()), FedAlt(), 4, 0.5)
        gaps.append((a.server.u - b.server.u).norm() / b.server.u.norm())
    assert gaps[1] < 1e-4
    assert gaps[1] < gaps[0] / 100


def test_both_parts_at_once_without_a_penalty_are_fedsim(clients):
    apm = FedAPM(rho=0.0, sigma=0.0, phases="joint")
    a, _ = run(digits(clients, apm), apm, 3, 0.5)
    b, _ = run(digits(clients, FedSim()), FedSim(), 3, 0.5)
    close(a.server.u, b.server.u)
    for k in range(len(clients)):
        close(a.store.get(k).state.v, b.store.get(k).state.v, 1e-5)


def test_with_nothing_personal_both_parts_at_once_are_the_shared_phase(clients):
    ends = [run(digits(clients, a, SplitRule()), a, 2, 0.5)[0] for a in (FedAPM(), FedAPM(phases="joint"))]
    assert ends[0].server.u.equal(ends[1].server.u)


def test_both_parts_at_once_by_hand(clients):
    rho, sigma, lr = 0.4, 0.1, 0.05
    method = FedAPM(rho=rho, sigma=sigma, phases="joint")
    problem = digits(clients, method, solver=SGDConfig(lr=lr, epochs=2, batch_size=0))
    u0, v0 = problem.u0, problem.start(0).v0
    pi, there = 0.01 * u0, State(u=0.9 * u0)
    reply = method.client_update(there, method.client_init(u0, v0).replace(pi=pi), problem.task(0, 1))
    u, v = there.u, v0
    for _ in range(2):
        gradient = problem.task(0, 1).gradient(u | v)
        u, v = (
            u - lr * (gradient.only(u) + pi + rho * (u - there.u)),
            v - lr * (gradient.only(v) + sigma * (v - v0)),
        )
    close(reply.state.u, u)
    close(reply.state.v, v)
    close(reply.state.pi, pi + rho * (u - there.u))


def test_several_clients_at_once_agree_with_one_by_one(clients):
    method = FedAPM(phases="joint", sigma=0.3)
    ends = [run(digits(clients, method), method, 2, 0.5, engine=e)[0] for e in (SequentialEngine, VectorizedEngine)]
    close(ends[0].server.u, ends[1].server.u, 1e-5)


def test_what_is_for_a_personal_phase_does_not_matter_where_there_is_none(clients):
    own = FedAPM(phases="joint", lr_v=0.5, epochs_v=4, v_at="local")
    ends = [run(digits(clients, a), a, 2, 0.5)[0] for a in (FedAPM(phases="joint"), own)]
    assert ends[0].server.u.equal(ends[1].server.u)


@pytest.mark.parametrize("server", ["participants", "all"])
@pytest.mark.parametrize("rho", [0.1, "auto", "balanced"])
def test_with_nothing_personal_it_is_fedadmm(clients, server, rho):
    admm = FedADMM(rho=rho, server=server)
    apm = FedAPM(rho=rho, server=server)
    a, _ = run(digits(clients, admm), admm, 4, 0.5)
    b, _ = run(digits(clients, apm, SplitRule()), apm, 4, 0.5)
    assert a.server.u.equal(b.server.u)
    assert a.server.numbers == b.server.numbers


def test_with_nothing_personal_and_theta_one_it_is_feddyn(clients):
    """Acar et al. 2021, Algorithm 1, longhand: h accumulates −α/m·Σ(θ_i − θ), the model is the mean minus h/α."""
    method = FedADMM(rho=0.3, theta=1.0)
    problem = digits(clients, method)
    states = []
    _, records = run(problem, method, 4, 0.5, watch=states)
    alpha, m = 0.3, len(clients)
    theta, h, gradients = problem.u0, problem.u0.zeros(), [problem.u0.zeros() for _ in range(m)]
    for t, record in enumerate(records[1:], 1):
        copies = []
        for k in record["selected"]:
            task = problem.task(k, t)
            copies.append(task.minimize(theta, linear=-gradients[k], prox=Prox(alpha, theta)))
            gradients[k] = gradients[k] - alpha * (copies[-1] - theta)
        h = h - (alpha / m) * sum((copy - theta for copy in copies[1:]), copies[0] - theta)
        theta = mean(copies) - h / alpha
        close(states[t].server.u, theta)


@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_the_server_by_hand(clients, theta):
    """One of six takes part: ū moves by all of its step, and by θ times a sixth of it."""
    method = FedAPM(rho=0.1, theta=theta)
    problem = digits(clients, method)
    progress, records = run(problem, method, 1, 1 / 6)
    (only,) = records[1]["selected"]
    state = progress.store.get(only).state
    gap = state.u - problem.u0
    close(progress.server.pi, 0.1 * gap / 6)
    close(progress.server.u, problem.u0 + gap + theta * (gap / 6))
    assert records[1]["server"]["rho"] == pytest.approx(0.1)
    assert records[1]["server"]["theta"] == theta


def test_theta_stays_between_kappa_and_one_and_is_recorded(clients):
    method = FedAPM()
    _, records = run(digits(clients, method), method, 12, 0.5)
    thetas = [record["server"]["theta"] for record in records[1:]]
    assert "server" not in records[0]
    assert thetas[0] == pytest.approx(method.kappa), "nothing is known of H yet"
    assert all(method.kappa <= theta <= 1 for theta in thetas)
    assert max(thetas) > 0.9, "a step this small can be amplified"


def test_only_steps_that_agree_are_amplified():
    """On a quadratic: a small step goes on in its direction, one near the limit of stability turns back each time."""
    known = convex("quadratic", p=0)
    largest = max(
        torch.linalg.eigvalsh(c.train.inputs[0].T @ c.train.inputs[0] / len(c.train)).max() + known.ridge
        for c in known.federation.clients
    ).item()
    thetas = []
    for share in (0.05, 1.9):
        method = FedADMM(kappa=0.1)
        solver = SGDConfig(lr=share / largest, epochs=1, batch_size=0, weight_decay=known.ridge)
        _, records = run(known.problem(method, solver), method, 12)
        thetas.append(sum(record["server"]["theta"] for record in records[4:]) / 9)
    assert thetas[0] > 0.7
    assert thetas[1] < 0.4


def test_rho_by_itself_has_no_units(clients):
    """Twice the epochs at half the step: the same ρ. Half the step alone: twice the ρ. κ is kept."""
    rhos = {}
    for lr, epochs in ((0.1, 2), (0.05, 4), (0.05, 2)):
        method = FedAPM()
        _, records = run(digits(clients, method, solver=SGDConfig(lr=lr, epochs=epochs, batch_size=16)), method, 1)
        rhos[lr, epochs] = records[1]["server"]["rho"]
    assert rhos[0.1, 2] == pytest.approx(rhos[0.05, 4])
    assert rhos[0.05, 2] == pytest.approx(2 * rhos[0.1, 2])
    sizes = [len(c.train) for c in clients.clients]
    steps = 2 * sum(len(range(0, n - 1 if n % 16 == 1 else n, 16)) for n in sizes) / len(sizes)
    assert rhos[0.1, 2] == pytest.approx(0.2 / (0.1 * steps))


def test_rho_follows_the_schedule_and_momentum(clients):
    method = FedAPM()
    falling = replace(SOLVER, lr_schedule="exponential", lr_decay=0.5, momentum=0.5)
    _, records = run(digits(clients, method, solver=falling), method, 3)
    _, steady = run(digits(clients, method), method, 1)
    first = steady[1]["server"]["rho"] / 2
    assert [r["server"]["rho"] for r in records[1:]] == pytest.approx([first, 2 * first, 4 * first])


@pytest.mark.parametrize("units", ["client", "paper"])
def test_rho_by_itself_is_the_same_method_in_both_units(clients, units):
    method = FedAPM()
    m = len(clients)
    solver = replace(SOLVER, lr=SOLVER.lr * (m if units == "paper" else 1))
    a, _ = run(digits(clients, method, solver=solver, weighting=Weighting(units=units)), method, 3, 0.5)
    b, _ = run(digits(clients, method), method, 3, 0.5)
    close(a.server.u, b.server.u, 1e-5)


def test_twenty_and_two_hundred_identical_clients_give_the_same_model():
    generator = torch.Generator().manual_seed(0)
    from fedapm.core.samples import Samples

    x, y = torch.randn(24, 5, generator=generator), torch.randint(0, 3, (24,), generator=generator)
    samples = Samples((x,), y)

    def ubar(m: int) -> Vec:
        clients = Federation([ClientData(str(k), samples, samples) for k in range(m)], "same")
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        method = FedAPM()
        problem = Problem(
            clients, network, SplitRule(personal=("2",)), adapt=method.adapt, solver=SGDConfig(lr=0.2, batch_size=0)
        )
        progress, _ = run(problem, method, 3, 1.0)
        return progress.server.u

    close(ubar(20), ubar(200), 1e-5)


def test_balanced_rho_stays_within_its_bounds_and_moves(clients):
    method = FedAPM(rho="balanced")
    progress, records = run(digits(clients, method), method, 25, 0.5)
    factors = [record["server"]["factor"] for record in records[1:]]
    assert all(0.1 <= factor <= 10 for factor in factors)
    assert len(set(factors)) > 1
    assert all(b / a == pytest.approx(1) or 1 / 1.21 < b / a < 1.21 for a, b in pairwise(factors))
    duals = mean(progress.store.get(k).state.pi for k in range(len(clients)))
    close(progress.server.pi, duals)


def test_the_published_method_longhand(clients):
    """Algorithm 1 of the paper written out, with the mean of all z_i: the same numbers to the bit."""
    method = FedAPMPaper(max_epochs=3)
    problem = digits(clients, method)
    states = []
    _, records = run(problem, method, 4, 0.5, watch=states)
    m = len(clients)
    start = problem.start(0)
    u_bar, u, v = problem.u0, [problem.u0] * m, [start.v0] * m
    pi, xi = [problem.u0.zeros()] * m, [method.xi] * m
    for t, record in enumerate(records[1:], 1):
        changes = []
        for k in record["selected"]:
            task = problem.task(k, t)
            xi[k] = method.mu * xi[k]
            stop = UntilStationary(xi[k], 3)
            z = u[k] + pi[k] / method.rho
            v[k] = task.minimize(v[k], fixed=u[k], prox=Prox(method.sigma, v[k]), stop=stop)
            u[k] = task.minimize(u[k], fixed=v[k], linear=pi[k], prox=Prox(method.rho, u_bar), stop=stop)
            pi[k] = pi[k] + method.rho * (u[k] - u_bar)
            changes.append(u[k] + pi[k] / method.rho - z)
        total = changes[0]
        for change in changes[1:]:
            total = total + change
        u_bar = u_bar + total / m
        assert states[t].server.u.equal(u_bar), t
    assert "server" not in records[-1]


def test_the_messages_are_one_vector_and_two_numbers(clients):
    for method, extra in ((FedAPM(), 16), (FedAPM(rho="balanced"), 32), (FedAPMPaper(), 0)):
        problem = digits(clients, method)
        _, records = run(problem, method, 1, 0.5)
        assert records[1]["bytes_up"] == 3 * (problem.u0.nbytes + extra + 8)
