"""Numbers as the report writes them."""

from __future__ import annotations

import math

import pytest

from fedapm.report import numbers
from fedapm.report.comparison.columns import SENT, Column, Estimate


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.1234, "0.123"),
        (9.999, "10.0"),
        (1234.5, "1,234"),
        (-0.05, "−0.0500"),
        (1.234e-7, "1.23×10⁻⁷"),
        (4.2e38, "4.20×10³⁸"),
    ],
)
def test_significant_digits(value: float, text: str) -> None:
    assert numbers.plain(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.5, "0.5"), (20.0, "20"), (1e-6, "10⁻⁶"), (2e7, "2×10⁷"), (-5.0, "−5")]
)
def test_ticks(value: float, text: str) -> None:
    assert numbers.tick(value) == text


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert numbers.percent(-1e-9) == "0.00"
    assert numbers.signed(numbers.percent(1e-9)) == "0.00"
    assert numbers.signed(numbers.percent(0.015)) == "+1.50"
    assert numbers.signed(numbers.percent(-0.015)) == "−1.50"


@pytest.mark.parametrize("value", [None, True, "1", math.nan, math.inf, [1], 10**400])
def test_what_is_no_number(value: object) -> None:
    assert numbers.finite(value) is None


def test_lists() -> None:
    assert numbers.listed(["a"]) == "a"
    assert numbers.listed(["a", "b", "c"]) == "a, b and c"
    assert numbers.listed(list("abcd"), at_most=2) == "a, b and 2 more"


def test_the_spread_has_the_decimals_of_its_mean() -> None:
    loss = Column("train_loss", "Training loss", False)
    cell = Estimate({1: 0.1, 2: 0.2})
    assert (loss.mean_text(cell), loss.std_text(cell)) == ("0.150", "± 0.071")
    exact = Estimate({1: 4.4, 2: 4.4})
    assert SENT.std_text(exact) == ""
    assert SENT.mean_text(Estimate({})) == "–"
