"""The empirical Łojasiewicz exponent, of sequences and problems whose exponent is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedapm import FedAPM, Federation
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.simulation.problem import Problem
from fedapm.theory.course import course
from fedapm.theory.rates import Rate, observed_rate
from tests.helpers.problems import Linear2, convex, quartic, run
from tests.theory.test_bounds import bounded

T = np.arange(1.0, 201.0)


@pytest.mark.parametrize("factor", [0.3, 0.8, 0.98])
@pytest.mark.parametrize("limit", [-2.0, 0.0, 5.0])
def test_a_geometric_sequence_has_exponent_one_half(factor, limit):
    rate = observed_rate(limit + factor**T)
    assert rate.kind == "linear"
    assert rate.exponent == pytest.approx(0.5, abs=1e-3)
    assert rate.factor == pytest.approx(factor, abs=1e-4)


@pytest.mark.parametrize("power", [1.0, 2.0, 5.0])
def test_a_power_has_the_exponent_of_the_theorem(power):
    """L̃_t − L̃_∞ ~ t^(−p) with p = 1/(2θ − 1)."""
    rate = observed_rate(1.0 + T**-power)
    assert rate.kind == "sublinear"
    assert rate.exponent == pytest.approx((1 + 1 / power) / 2, abs=1e-3)
    assert rate.power == pytest.approx(power, rel=1e-2)


def test_a_sequence_that_comes_to_rest_is_finite():
    assert observed_rate([5, 3, 2, 1, 1, 1, 1, 1, 1, 1]) == Rate("finite", 0.0, 0.0, 0, 3)


def test_a_sequence_that_ends_in_rounding_is_not():
    rate = observed_rate(0.3 ** np.arange(100.0) + 1)
    assert rate.kind == "linear"
    assert rate.last < 40


def test_decreases_of_all_sizes_do_not_hide_a_linear_rate():
    """As where only some clients take part in a round."""
    luck = np.random.default_rng(0).gamma(3.0, 1.0, len(T))
    rate = observed_rate(-np.cumsum(0.9**T * luck))
    assert rate.kind == "linear"
    assert rate.exponent == pytest.approx(0.5, abs=3 * rate.error)


def test_steps_up_are_taken_together_with_steps_down():
    wiggle = 0.9**T * (1 + 0.2 * (-1) ** T)
    assert (np.diff(wiggle) > 0).any()
    rate = observed_rate(wiggle)
    assert rate.window == 2
    assert rate.exponent == pytest.approx(0.5, abs=0.01)


def test_scatter_that_leaves_the_question_open_is_called_that():
    luck = np.random.default_rng(0).gamma(3.0, 1.0, len(T))
    rate = observed_rate(-np.cumsum(T**-3 * luck))
    assert rate.kind == "unclear"
    assert abs(rate.exponent - 0.75) < 2 * rate.error


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([3.0, 2.0, 1.0], "too few"),
        (list(T), "does not go down"),
        (list(np.random.default_rng(1).normal(size=100)), "up as much as down"),
        ([*T, float("nan")], "not finite"),
    ],
)
def test_where_there_is_no_rate_it_is_said_why(values, reason):
    assert reason in observed_rate(values)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_quadratics_have_the_linear_rate(fraction):
    known = convex("quadratic")
    method, problem = bounded(known)
    _, records = run(problem, method, int(50 / fraction), fraction, theory=True)
    rate = course(records[5:]).rate()
    assert rate.kind == "linear"
    assert rate.exponent == pytest.approx(0.5, abs=0.05)
    assert 0.5 < rate.factor < 1


def test_a_quartic_has_the_sublinear_rate_of_exponent_three_quarters():
    """f_i = c_i·u⁴/4 has θ = 1 − 1/4, so that what is left falls like t^(−2)."""
    data = {}
    for client, scale in enumerate((1.0, 1.5)):
        x = torch.full((1, 1), scale, dtype=torch.float64)
        data[client] = ((x, torch.zeros(1, 0, dtype=torch.float64)), torch.zeros(1, dtype=torch.float64))
    method = FedAPM(rho=1.0, u_start="local")
    problem = Problem(
        Federation.from_clients(data, test=data),
        lambda: Linear2(1, 0),
        SplitRule(),
        adapt=method.adapt,
        solver=SGDConfig(lr=0.3, epochs=8, batch_size=0),
        loss=quartic,
    )
    _, records = run(problem, method, 100, theory=True)
    rate = course(records).rate()
    assert rate.kind == "sublinear"
    assert rate.exponent == pytest.approx(0.75, abs=0.02)
