"""Where a method's parameters make it another method, the numbers must be the same."""

from dataclasses import replace

import pytest
import torch

from fedapm import FedAlt, FedAPM, FedAvg, FedProx, FedSim, Local
from fedapm.core.random import torch_generator
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.core.vec import Vec, mean
from fedapm.data import Dirichlet
from fedapm.data.sets.digits import federation
from fedapm.models import DigitsNet
from fedapm.simulation.problem import Problem, Weighting
from tests.helpers.problems import convex, run


@pytest.fixture(scope="module")
def clients():
    return federation(Dirichlet(6, 1.0, 20), test_fraction=0.2, seed=0)


def digits(clients, method, rule=None, **options) -> Problem:
    options.setdefault("solver", SGDConfig(lr=0.1, epochs=2, batch_size=16))
    return Problem(clients, DigitsNet, rule or SplitRule(preset="output"), adapt=method.adapt, **options)


NOTHING_PERSONAL = SplitRule()


def test_fedprox_without_its_term_is_fedavg(clients):
    prox, avg = FedProx(mu=0.0), FedAvg()
    a, _ = run(digits(clients, prox), prox, 4, 0.5)
    b, _ = run(digits(clients, avg), avg, 4, 0.5)
    assert a.server.u.equal(b.server.u)


def test_fedprox_with_its_term_is_not(clients):
    prox, avg = FedProx(mu=1.0), FedAvg()
    a, _ = run(digits(clients, prox), prox, 2)
    b, _ = run(digits(clients, avg), avg, 2)
    assert not a.server.u.equal(b.server.u)


@pytest.mark.parametrize("method", [FedAlt(), FedSim()])
def test_partial_methods_with_nothing_personal_are_fedavg(clients, method):
    a, _ = run(digits(clients, method, NOTHING_PERSONAL), method, 4, 0.5)
    b, _ = run(digits(clients, FedAvg(), NOTHING_PERSONAL), FedAvg(), 4, 0.5)
    assert a.server.u.equal(b.server.u)


def test_fedapm_without_penalty_is_fedalt(clients):
    """π = 0, ρ = 0, σ = 0, both phases from ū, everybody takes part."""
    apm = FedAPM(rho=0.0, sigma=0.0, v_at="shared", u_start="shared", evaluate="shared")
    a, _ = run(digits(clients, apm), apm, 4)
    b, _ = run(digits(clients, FedAlt()), FedAlt(), 4)
    for name, tensor in b.server.u.items():
        torch.testing.assert_close(a.server.u[name], tensor, rtol=1e-5, atol=1e-6)
    for k in range(len(clients)):
        v, w = a.store.get(k).state.v, b.store.get(k).state.v
        for name in w:
            torch.testing.assert_close(v[name], w[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("server", ["participants", "all"])
def test_fedapm_with_nothing_personal_is_consensus_admm(server):
    """Against ADMM written out longhand with exact local solutions (Boyd et al. 2011, section 7.1).

    With everybody taking part and θ = 1 the participants' mean plus H is the mean of all z_i: the same server.
    """
    known = convex("quadratic", p=0)
    rho, ridge, rounds = 0.7, known.ridge, 6
    method = FedAPM(rho=rho, sigma=0.0, xi=1e-26, mu=0.999, max_epochs=600, server=server, theta=1.0)
    problem = known.problem(method, SGDConfig(lr=0.25, batch_size=0, weight_decay=ridge))
    states = []
    run(problem, method, rounds, watch=states)

    u = states[0].server.u["u"].clone()
    m = len(known.federation)
    pi = torch.zeros(m, known.d, dtype=torch.float64)
    for t in range(rounds):
        copies = []
        for i, client in enumerate(known.federation.clients):
            x, y = client.train.inputs[0], client.train.targets
            left = x.T @ x / len(y) + (ridge + rho) * torch.eye(known.d, dtype=torch.float64)
            copies.append(torch.linalg.solve(left, x.T @ y / len(y) - pi[i] + rho * u))
        pi = pi + rho * (torch.stack(copies) - u)
        u = torch.stack([c + p / rho for c, p in zip(copies, pi, strict=True)]).mean(0)
        torch.testing.assert_close(states[t + 1].server.u["u"], u, rtol=0, atol=1e-9)


def test_fedavg_of_one_client_is_sgd(clients):
    """Against torch's own optimiser on the same batches."""
    alone = type(clients)([clients[0]])
    solver = SGDConfig(lr=0.07, epochs=3, batch_size=16, momentum=0.8, weight_decay=0.01)
    problem = digits(alone, FedAvg(), solver=solver)
    network, rounds = DigitsNet(), 3
    network.load_state_dict({n: t.clone() for n, t in problem.u0.items()})
    progress, _ = run(problem, FedAvg(), rounds)
    train = clients[0].train
    for t in range(1, rounds + 1):
        optimiser = torch.optim.SGD(network.parameters(), lr=0.07, momentum=0.8, weight_decay=0.01)
        stream = torch_generator(problem.seed, "batches", 0, t)
        for _ in range(solver.epochs):
            order = torch.randperm(len(train), generator=stream)
            for batch in order.split(16):
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(network(train.inputs[0][batch]), train.targets[batch])
                loss.backward()
                optimiser.step()
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(progress.server.u[name], tensor, rtol=1e-4, atol=1e-5)


def test_local_only_is_sgd_of_each_client_by_itself(clients):
    method = Local()
    together, _ = run(digits(clients, method), method, 3)
    alone = type(clients)([clients[0]])
    apart, _ = run(digits(alone, method), method, 3)
    assert together.store.get(0).state.v.equal(apart.store.get(0).state.v)


def test_fedavg_weighs_by_samples_over_those_selected(clients):
    method = FedAvg()
    problem = digits(clients, method, weighting=Weighting(weights="samples"))
    progress, records = run(problem, method, 1, 0.5)
    chosen = records[1]["selected"]
    assert 1 < len(chosen) < len(clients)
    sizes = torch.tensor([len(clients[k].train) for k in chosen], dtype=torch.float64)
    trained = [problem.task(k, 1).minimize(problem.u0) for k in chosen]
    for name, tensor in progress.server.u.items():
        batched = torch.stack([t[name].double() for t in trained])
        expected = torch.einsum("k,k...->...", sizes / sizes.sum(), batched)
        torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_paper_units_give_the_same_iterates(weights):
    """ρ, σ divided by m, ξ by m², the step size multiplied by m: nothing else changes."""
    known = convex("quadratic")
    m = len(known.federation)
    mine = FedAPM(rho=0.4, sigma=0.1, xi=0.3, mu=0.8, max_epochs=40)
    paper = replace(mine, rho=0.4 / m, sigma=0.1 / m, xi=0.3 / m**2)
    solver = SGDConfig(lr=0.1, batch_size=8, weight_decay=known.ridge)
    a, first = run(known.problem(mine, solver, weighting=Weighting(weights, "client")), mine, 8, 0.5)
    b, second = run(
        known.problem(paper, replace(solver, lr=0.1 * m), weighting=Weighting(weights, "paper")), paper, 8, 0.5
    )
    torch.testing.assert_close(a.server.u["u"], b.server.u["u"], rtol=0, atol=1e-10)
    for k in range(m):
        state, r = a.store.get(k).state, b.store.get(k).state
        torch.testing.assert_close(state.v["v"], r.v["v"], rtol=0, atol=1e-10)
        torch.testing.assert_close(state.pi["u"], m * r.pi["u"], rtol=0, atol=1e-9)
    assert [r["local"] and r["local"]["epochs"] for r in first] == [r["local"] and r["local"]["epochs"] for r in second]


@pytest.mark.parametrize(("method", "converted"), [(FedProx(mu=0.5), FedProx(mu=0.5 / 6)), (FedAlt(), FedAlt())])
def test_paper_units_hold_for_averaging_methods_too(clients, method, converted):
    solver = SGDConfig(lr=0.05, epochs=1, batch_size=16)
    a, _ = run(digits(clients, method, solver=solver), method, 3, 0.5)
    paper = digits(clients, converted, solver=replace(solver, lr=0.3), weighting=Weighting(units="paper"))
    b, _ = run(paper, converted, 3, 0.5)
    for name, tensor in a.server.u.items():
        torch.testing.assert_close(tensor, b.server.u[name], rtol=1e-4, atol=1e-5)


def test_fedapm_mean_counts_silent_clients(clients):
    """One of six takes part: ū moves by a sixth of its change, not by the whole of it."""
    method = FedAPM(rho=0.1, server="all")
    problem = digits(clients, method)
    progress, records = run(problem, method, 1, 1 / 6)
    (only,) = records[1]["selected"]
    state = progress.store.get(only).state
    change = state.u + state.pi / method.rho - problem.u0
    expected = problem.u0 + change / 6
    for name, tensor in expected.items():
        torch.testing.assert_close(progress.server.u[name], tensor, rtol=0, atol=1e-7)
    everyone = mean(progress.store.get(k).state.z for k in range(6))
    assert isinstance(everyone, Vec)
    assert (everyone - progress.server.u).norm() < 1e-6
