"""When a difference counts as more than noise."""

from __future__ import annotations

import pytest
from scipy import stats

from fedapm.report.significance import clear_best, paired_difference


def test_the_interval_is_the_paired_t_interval() -> None:
    left, right = {1: 0.9, 2: 0.8, 3: 0.85, 9: 0.1}, {1: 0.85, 2: 0.78, 3: 0.79, 8: 0.9}
    found = paired_difference(left, right)
    expected = stats.ttest_rel([0.9, 0.8, 0.85], [0.85, 0.78, 0.79]).confidence_interval(0.95)
    assert found is not None
    assert found.seeds == 3
    assert found.mean == pytest.approx((0.05 + 0.02 + 0.06) / 3)
    assert found.low == pytest.approx(expected.low)
    assert found.high == pytest.approx(expected.high)


def test_without_a_common_seed_there_is_no_difference() -> None:
    assert paired_difference({1: 0.5}, {2: 0.4}) is None


def test_one_common_seed_is_never_clear() -> None:
    found = paired_difference({1: 0.9, 2: 0.5}, {1: 0.1, 3: 0.2})
    assert found is not None
    assert found.mean == pytest.approx(0.8)
    assert found.low is None
    assert not found.clear


def test_a_clear_winner_is_found_in_either_direction() -> None:
    high, low = {1: 0.90, 2: 0.91, 3: 0.92}, {1: 0.80, 2: 0.81, 3: 0.83}
    assert clear_best([low, high], higher_is_better=True) == 1
    assert clear_best([low, high], higher_is_better=False) == 0


def test_pairing_finds_a_small_but_steady_lead_under_large_spread() -> None:
    base = {1: 0.5, 2: 0.7, 3: 0.9}
    ahead = {seed: value + 0.01 + 0.001 * seed for seed, value in base.items()}
    assert clear_best([base, ahead], higher_is_better=True) == 1


def test_an_unsteady_lead_is_not_marked() -> None:
    assert clear_best([{1: 0.9, 2: 0.7, 3: 0.8}, {1: 0.8, 2: 0.72, 3: 0.79}], higher_is_better=True) is None


def test_every_other_must_be_beaten() -> None:
    best, second, far = {1: 0.9, 2: 0.91}, {1: 0.8, 2: 0.81}, {1: 0.2, 2: 0.22}
    assert clear_best([best, second, far], higher_is_better=True) == 0


def test_a_wild_third_cannot_be_told_apart() -> None:
    best, second, wild = {1: 0.9, 2: 0.91}, {1: 0.8, 2: 0.81}, {1: 0.2, 2: 0.95}
    assert clear_best([best, second, wild], higher_is_better=True) is None


@pytest.mark.parametrize(
    "columns",
    [
        [],
        [{1: 0.9, 2: 0.9}],
        [{1: 0.9, 2: 0.9}, {}],
        [{1: 0.9, 2: 0.8}, {1: 0.9, 2: 0.8}],
        [{1: 0.9}, {1: 0.1}],
        [{1: 0.9, 2: 0.9}, {3: 0.1, 4: 0.1}],
        [{1: 0.3, 2: 0.3}, {1: 0.1 + 0.2, 2: 0.1 + 0.2}],
    ],
    ids=["none", "one", "one with values", "tie", "one seed", "no common seed", "rounding error"],
)
def test_nobody_is_best(columns: list[dict[int, float]]) -> None:
    assert clear_best(columns, higher_is_better=True) is None


def test_two_equal_runners_up_must_both_be_beaten() -> None:
    best, steady, wild = {1: 0.9, 2: 0.91}, {1: 0.8, 2: 0.81}, {1: 0.95, 2: 0.66}
    assert sum(steady.values()) == pytest.approx(sum(wild.values()))
    assert clear_best([best, steady, wild], higher_is_better=True) is None


def test_an_exact_difference_is_clear() -> None:
    assert clear_best([{1: 4.4, 2: 4.4}, {1: 0.0, 2: 0.0}], higher_is_better=False) == 1
