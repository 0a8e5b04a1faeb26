"""ε against published values, against the definition, and over rounds."""

import math

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedapm.privacy.accountant import Accountant, gaussian_delta, gaussian_epsilon
from fedapm.simulation.sampling import Sampling


def test_the_noise_of_the_analytic_gaussian_mechanism():
    # Balle and Wang (2018), algorithm 1 at sensitivity 1, ε = 1, δ = 10⁻⁵
    assert gaussian_epsilon(1 / 3.730631634944469, 1e-5) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_delta_is_what_its_definition_says(mu, epsilon):
    def excess(x: float) -> float:
        return max(norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x), 0.0)

    start = epsilon / mu + mu / 2
    expected, _ = quad(excess, start, start + 15, epsabs=1e-13, limit=200)
    assert gaussian_delta(epsilon, mu) == pytest.approx(expected, abs=1e-9)


def test_epsilon_and_delta_are_each_others_inverse_and_have_limits():
    for mu in (0.01, 0.3, 1.0, 5.0, 40.0):
        for delta in (1e-12, 1e-5, 0.01):
            epsilon = gaussian_epsilon(mu, delta)
            assert epsilon == 0.0 or gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-6)
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(1e5, 1e-5) == math.inf
    assert gaussian_delta(0.0, 1.0) == pytest.approx(norm.cdf(0.5) - norm.cdf(-0.5))


def test_rounds_count_for_those_who_took_part():
    # clients 0 and 1 take turns, client 2 takes part every third round
    accountant = Accountant(2.0, 1e-5, lambda m, round: [round % 2] + [2] * (round % 3 == 0))
    for rounds, most in ((0, 0), (1, 1), (2, 1), (3, 2), (10, 5), (7, 4)):
        assert accountant.sensitivity(3, rounds) == math.sqrt(most)
        assert accountant.epsilon(3, rounds) == gaussian_epsilon(math.sqrt(most) / 2.0, 1e-5)


def test_everybody_in_every_round_is_plain_composition():
    accountant = Accountant(4.0, 1e-6, lambda m, round: Sampling(1.0).draw(m, 0, round))
    assert accountant.epsilon(5, 16) == gaussian_epsilon(1.0, 1e-6)


def test_a_tree_counts_every_sum_that_a_client_is_in():
    # rounds 1 to 8 end the sums over 1, 2, 1, 4, 1, 2, 1 and 8 rounds
    spans = [1, 2, 1, 4, 1, 2, 1, 8]
    for taken in ([1], [3], [1, 2], [2, 5, 8], range(1, 9)):
        accountant = Accountant(1.0, 1e-5, lambda m, round, taken=taken: [0] if round in taken else [1], tree=True)
        mine = [sum(end - length < r <= end for r in taken) for end, length in enumerate(spans, start=1)]
        others = [length - own for length, own in zip(spans, mine, strict=True)]
        largest = max(sum(c * c for c in mine), sum(c * c for c in others))
        assert accountant.sensitivity(2, 8) == pytest.approx(math.sqrt(largest))


@pytest.mark.filterwarnings("ignore")  # of opacus, on orders at the end of its range and logarithms of zero
@pytest.mark.parametrize("kind", ["rdp", "prv"])
def test_a_library_says_the_same(kind):
    accountants = pytest.importorskip("opacus.accountants")
    made = {"rdp": accountants.RDPAccountant, "prv": accountants.PRVAccountant}[kind]()
    made.history = [(2.0, 1.0, 20)]
    theirs = made.get_epsilon(delta=1e-5)
    ours = gaussian_epsilon(math.sqrt(20) / 2.0, 1e-5)
    # both bound it from above, Rényi less closely
    assert ours <= theirs * (1 + 1e-3)
    assert theirs <= ours * (1.1 if kind == "rdp" else 1.01) + 0.02
