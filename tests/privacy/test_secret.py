"""Clients that are drawn secretly, a bound that follows their norms, and what a library says of both."""

import importlib.util
import math
import sys

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from fedapm.core.algorithm import NUMBERS, Aggregate
from fedapm.core.solver import SGDConfig
from fedapm.core.vec import Vec, mean
from fedapm.experiments.settings import Experiment
from fedapm.privacy import PrivacySettings, gaussian_epsilon, protection
from fedapm.privacy.clipping import AdaptiveClip
from fedapm.privacy.subsampled import subsampled_epsilon
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.sampling import PoissonSampling
from tests.helpers.running import play
from tests.helpers.unit import refused
from tests.privacy.test_method import protecting
from tests.uploads.small import CLIENTS, problem_of, run

DELTA = 1e-5


def secret(name: str, rate: float = 0.4, **settings):
    """A method whose clients are drawn secretly."""
    return protecting(name, sampling="poisson", fraction=rate, **settings)


def played(method, rounds: int, rate: float, **more):
    problem = problem_of(method, rounds)
    return play(problem, method, Schedule(rounds, PoissonSampling(rate, keyed=True), 10**9), **more)


def test_the_numbers_that_were_published():
    pytest.importorskip("opacus")
    # Abadi et al. (2016), section 1: q = 0.01, σ = 4, 10,000 steps; the moments accountant says 1.26, later ones less
    rdp, prv = (subsampled_epsilon(0.01, 4.0, 10_000, DELTA, kind) for kind in ("rdp", "prv"))
    assert 0.9 < prv < rdp < 1.26
    # the tutorial of TensorFlow Privacy: 60,000 samples, batches of 250, σ = 1.3, 15 epochs: 1.18
    assert 0.8 < subsampled_epsilon(250 / 60_000, 1.3, 15 * 240, DELTA) <= 1.18 + 0.005


@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 1.0), (0.5, 2.0)])
def test_one_step_is_what_its_definition_says(rate, sigma):
    """(1 − q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²): δ at the ε that is claimed."""
    pytest.importorskip("opacus")

    def delta(epsilon: float) -> float:
        def excess(x: float) -> float:
            absent, present = norm.pdf(x, 0, sigma), norm.pdf(x, 1, sigma)
            mixed = (1 - rate) * absent + rate * present
            return max(mixed - math.exp(epsilon) * absent, 0.0)

        return quad(excess, -5 * sigma, 12 * sigma, epsabs=1e-12, limit=400)[0]

    tight = subsampled_epsilon(rate, sigma, 1, 1e-4, "prv")
    assert delta(tight) <= 1e-4 * 1.01
    assert delta(tight * 0.9 - 0.02) > 1e-4
    assert delta(subsampled_epsilon(rate, sigma, 1, 1e-4, "rdp")) <= 1e-4


def test_everybody_in_each_round_is_the_exact_gaussian():
    assert subsampled_epsilon(1.0, 2.0, 16, DELTA) == gaussian_epsilon(2.0, DELTA)
    assert subsampled_epsilon(0.3, 2.0, 0, DELTA) == 0.0


def test_draws_are_independent_and_only_keyed_ones_are_repeated():
    drawn = [PoissonSampling(0.3, keyed=True).draw(50, 7, round) for round in range(400)]
    counts = [len(clients) for clients in drawn]
    assert sum(counts) / 400 == pytest.approx(15, abs=6 * math.sqrt(50 * 0.21 / 400))
    assert len({*counts}) > 5  # a number of clients that is not fixed
    assert drawn == [PoissonSampling(0.3, keyed=True).draw(50, 7, round) for round in range(400)]
    one, other = PoissonSampling(0.5), PoissonSampling(0.5)
    assert one.draw(200, 0, 1) == one.draw(200, 0, 1)
    assert one.draw(200, 0, 1) != other.draw(200, 0, 1)


@pytest.mark.parametrize("name", ["fedapm", "fedavg"])
def test_the_number_of_clients_is_not_divided_by(name):
    """Sums are divided by the expected number, also in a round that nobody takes part in."""
    pytest.importorskip("opacus")
    method = secret(name, 0.25, noise_multiplier=1e-9, clip=10.0)
    object.__setattr__(method, "accountant", Known())
    problem = problem_of(method, 8)
    end, records = played(method, 8, 0.25)
    counts = [len(record["selected"]) for record in records[1:]]
    assert 0 in counts
    assert max(counts) > 1
    empty = counts.index(0) + 1
    assert records[empty]["bytes_up"] == 0
    if name == "fedapm":
        assert end.server.pi.norm() > 0
        kept = mean(end.store.get(k).state.pi for k in range(CLIENTS))
        assert (end.server.pi - kept).norm() < 1e-6
    server = method.server_init(problem.u0)
    vector = "change" if name == "fedapm" else "du"
    one = problem.u0.map(torch.ones_like)
    sums = {vector: one} | ({NUMBERS: ones(["rho", "kappa"])} if name == "fedapm" else {})
    new = method.server_update(server, Aggregate(sums, 1.0, 1.0), CLIENTS)
    step = (new.u - server.u)["stem.weight"].mean().item()
    # one client's sum of ones, divided by 1.5; FedAPM adds θ·H, with H = 1/6 and θ = κ = 1
    assert step == pytest.approx(1 / 1.5 + (1 / 6 if name == "fedapm" else 0), abs=1e-6)


class Known:
    """An accountant that costs no time."""

    def epsilon(self, m: int, rounds: int) -> float:
        return float(rounds)


def ones(names) -> Vec:
    return Vec({name: torch.ones(1, dtype=torch.float64) for name in names})


def test_a_run_of_secret_clients_ends_at_its_budget_and_costs_less():
    pytest.importorskip("opacus")
    method = secret("fedapm", 0.2, noise_multiplier=2.0, epsilon=3.0)
    end, records = played(method, 200, 0.2)
    last = records[-1]["round"]
    assert end.state.stopped.startswith("the privacy budget is spent")
    assert records[-1]["server"]["epsilon"] <= 3.0 < method.accountant.epsilon(CLIENTS, last + 1)
    # with a selection that is known, the client that took part most often would have spent more
    most = max(sum(k in record["selected"] for record in records) for k in range(CLIENTS))
    assert gaussian_epsilon(math.sqrt(most) / 2.0, DELTA) > 3.0


def test_the_bound_moves_to_the_median_and_costs_what_is_said():
    adaptive, clip = AdaptiveClip(2.0), 0.1
    norms = torch.rand(1001, generator=torch.Generator().manual_seed(0)) + 3
    for _ in range(100):
        clip = adaptive.moved(clip, float((norms < clip).double().mean()))
    assert clip == pytest.approx(float(norms.median()), rel=0.02)
    for expected in (6, 100, 1000):
        bit, vector = adaptive.bit_deviation(expected), adaptive.vector_sigma(expected)
        # of one client: a message of length 1 and a bit of a half, together as far as 1/σ
        assert math.hypot(1 / vector, 0.5 / bit) == pytest.approx(1 / 2.0)


def test_a_run_with_a_bound_that_moves():
    method = protecting("fedapm", clip="adaptive", noise_multiplier=0.5)
    one, records = run(method, 6)
    bounds = [record["server"]["clip"] for record in records[1:]]
    assert len({*bounds}) == 6
    assert all(
        0.1 * math.exp(-0.1 * r) * 0.999 <= s <= 0.1 * math.exp(0.1 * r) * 1.001 for r, s in enumerate(bounds, 1)
    )
    side, _ = run(method, 6, kind=VectorizedEngine)
    assert (one.server.u - side.server.u).norm() < 1e-7
    # the noise is that of the message alone, a little more than of a fixed bound
    server = method.server_init(problem_of(method).u0)
    zero = Vec({"w": torch.zeros(20_000, dtype=torch.float64)})
    noise, _ = method._noise(server, zero, 1, 6)
    assert noise["w"].std().item() == pytest.approx(AdaptiveClip(0.5).vector_sigma(6) * 0.1, rel=0.03)


def test_a_library_that_is_missing_is_asked_for_before_anything_is_done(monkeypatch):
    for module in ("opacus", "opacus.accountants", "opacus.accountants.analysis.rdp"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for more in ({"sampling": "poisson"}, {"sampling": "poisson", "epsilon": 8.0}):
        with refused("opacus", "fedapm[privacy]"):
            Experiment.from_tables({"privacy": more})
    with refused("opacus", "fedapm[privacy]"):
        protection(PrivacySettings(level="sample"), SGDConfig(batch_size=10))


def test_what_does_not_go_together_is_refused():
    for tables, *mentions in (
        ({"privacy": {"sampling": "poisson", "correlation": "tree"}}, "privacy.correlation"),
        ({"privacy": {"sampling": "poisson"}, "engine": {"count": 3}}, "engine.count"),
        ({"privacy": {"sampling": "poisson"}, "upload": {"broadcast": "int8"}}, "upload.broadcast"),
        ({"privacy": {"clip": "adaptive"}, "upload": {"compress": "top-k"}}, "upload.compress"),
        ({"privacy": {"accountant": "prv"}}, "privacy.accountant", "poisson"),
        ({"privacy": {"level": "sample", "sampling": "poisson"}}, "privacy.sampling"),
    ):
        with refused(*mentions):
            Experiment.from_tables(tables)
