"""The little language of search spaces: what is written is what is searched, and nonsense is refused in one line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapm.core.search_space import Choices, Dimension, FloatRange, IntRange
from fedapm.tuning.space import (
    combination,
    current_value,
    grid_size,
    match_value,
    parse_dimension,
    sample,
    sample_value,
    spread_combinations,
    trial_settings,
)
from tests.helpers.unit import few, refused, unless_refused

numbers = st.floats(1e-6, 1e6) | st.integers(-1000, 1000)
words = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda w: w not in ("true", "false", "inf", "nan"))


def stream() -> np.random.Generator:
    return np.random.default_rng(5)


@few
@given(st.lists(numbers | words | st.booleans(), min_size=1, max_size=5, unique_by=lambda v: v))
def test_a_list_comes_back_as_it_was_written(values: list[Any]) -> None:
    text = ",".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)
    found = parse_dimension(f" algorithm.x = {text}")
    assert found.setting == "algorithm.x"
    assert isinstance(found.values, Choices)
    assert list(found.values.values) == values
    assert [type(v) for v in found.values.values] == [type(v) for v in values]


@few
@given(st.sampled_from(["log", "lin"]), st.floats(1e-9, 1e3), st.floats(1.001, 1e6))
def test_a_range_is_drawn_within_its_ends(kind: str, low: float, times: float) -> None:
    found = parse_dimension(f"solver.lr={kind}:{low!r}:{low * times!r}")
    assert found.values == FloatRange(low, low * times, log=kind == "log")
    source = stream()
    drawn = [sample_value(found.values, source) for _ in range(50)]
    assert all(isinstance(v, float) and low <= v <= low * times for v in drawn)
    assert len({*drawn}) > 40


def test_a_logarithmic_range_is_even_in_the_logarithm() -> None:
    source = stream()
    drawn = [float(sample_value(FloatRange(0.001, 1.0, log=True), source)) for _ in range(4000)]
    shares = np.histogram([math.log10(v) for v in drawn], bins=3, range=(-3, 0))[0] / len(drawn)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.03)


@few
@given(st.integers(-5, 5), st.integers(1, 6))
def test_whole_numbers_include_both_ends(low: int, more: int) -> None:
    found = parse_dimension(f"algorithm.k=int:{low}:{low + more}")
    assert found.values == IntRange(low, low + more)
    source = stream()
    assert {sample_value(found.values, source) for _ in range(300)} == set(range(low, low + more + 1))


@few
@given(st.text(max_size=30))
def test_any_text_is_a_space_or_one_line(text: str) -> None:
    found = unless_refused(lambda: parse_dimension(text), "--search")
    assert found is None or "." in found.setting


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("solver.lr", ["table.key=value"]),
        ("lr=0.1", ["table.key=value"]),
        ("solver.=0.1", ["table.key=value"]),
        ("solver.lr=", ["table.key=value"]),
        ("solver.lr=0.1,0.1", ["twice"]),
        ("solver.lr=1,1.0", ["twice"]),
        ("solver.lr=0.1,,0.2", ["no value"]),
        ("solver.lr=inf", ["'inf'"]),
        ("model.personal=['a']", ["no value"]),
        ("solver.lr=log:0:1", ["above zero"]),
        ("solver.lr=log:1:0.1", ["below"]),
        ("solver.lr=lin:1:1", ["below"]),
        ("solver.lr=lin:0:inf", ["finite"]),
        ("solver.lr=log:0.1", ["two numbers"]),
        ("solver.lr=log:0.1:1:2", ["two numbers"]),
        ("solver.epochs=int:1:2.5", ["whole"]),
        ("solver.epochs=int:1:99999999999999999999", ["beyond"]),
        ("solver.lr=lin:-1e308:1e308", ["beyond"]),
    ],
)
def test_what_is_no_space_is_refused(text: str, mentions: list[str]) -> None:
    with refused("--search", *mentions):
        parse_dimension(text)


SPACE = (
    Dimension("solver.lr", Choices((0.1, 0.2, 0.4))),
    Dimension("algorithm.k", IntRange(2, 5)),
    Dimension("solver.lr_schedule", Choices(("constant", "cosine"))),
)


def test_combinations_are_counted_and_all_different() -> None:
    count = grid_size(SPACE)
    assert count == 24
    found = [combination(SPACE, index) for index in range(count)]
    assert len({tuple(params.items()) for params in found}) == 24
    assert found[0] == {"solver.lr": 0.1, "algorithm.k": 2, "solver.lr_schedule": "constant"}
    assert found[1]["solver.lr_schedule"] == "cosine"
    assert found[-1] == {"solver.lr": 0.4, "algorithm.k": 5, "solver.lr_schedule": "cosine"}


def test_a_range_cannot_be_counted() -> None:
    assert grid_size((*SPACE, Dimension("algorithm.rho", FloatRange(0.1, 1.0)))) is None
    assert grid_size(()) == 1
    assert grid_size((Dimension("a.b", IntRange(0, 2**40)), Dimension("a.c", IntRange(0, 2**40)))) is None, "too many"


def test_draws_depend_on_their_stream_alone() -> None:
    assert sample(SPACE, stream()) == sample(SPACE, stream())


def test_a_ratio_follows_the_setting_it_is_a_ratio_to() -> None:
    ratio = Dimension("algorithm.lr_v", FloatRange(0.1, 3.0, log=True), fallback="solver.lr", ratio=True)
    lr = Dimension("solver.lr", Choices((0.1, 0.2)))
    base = {"solver": {"lr": 0.5}, "algorithm": {}}
    assert trial_settings((ratio, lr), {ratio.name: 2.0, lr.name: 0.2}, base) == {
        "solver.lr": 0.2,
        "algorithm.lr_v": 0.4,
    }
    assert trial_settings((ratio,), {ratio.name: 2.0}, base) == {"algorithm.lr_v": 1.0}
    assert current_value(ratio, base) == 1.0, "where there is no lr_v the solver's step size holds"
    assert current_value(ratio, {"solver": {"lr": 0.5}, "algorithm": {"lr_v": 0.1}}) == pytest.approx(0.2)


def test_a_setting_that_does_not_matter_is_left_out() -> None:
    decay = Dimension("solver.lr_decay", FloatRange(0.9, 1.0), condition=("solver.lr_schedule", "exponential"))
    schedule = Dimension("solver.lr_schedule", Choices(("exponential", "cosine")))
    for value, kept in (("exponential", {"solver.lr_decay", "solver.lr_schedule"}), ("cosine", {"solver.lr_schedule"})):
        assert {*trial_settings((decay, schedule), {decay.name: 0.95, schedule.name: value}, {})} == kept


def test_present_values_are_matched_to_the_space() -> None:
    assert match_value(Choices((1, 2)), 1.0) == 1
    assert match_value(Choices((1, 2)), True) is None
    assert match_value(Choices((1, 2)), None) is None
    assert match_value(FloatRange(0.1, 1.0), 2) is None
    assert match_value(FloatRange(0.1, 1.0), "0.5") is None
    assert match_value(IntRange(1, 3), 2) == 2
    assert match_value(IntRange(1, 3), 2.5) is None
    epochs = Dimension("algorithm.epochs_v", IntRange(1, 5), fallback="solver.epochs")
    assert current_value(epochs, {"solver": {"epochs": 3}}) == 3


def listed(*sizes: int) -> tuple[Dimension, ...]:
    return tuple(Dimension(f"algorithm.x{k}", Choices(tuple(range(size)))) for k, size in enumerate(sizes))


@few
@given(st.integers(1, 12), st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 99))
def test_few_of_many_combinations_have_every_value_equally_often(number: int, sizes: list[int], seed: int) -> None:
    # no two are the same by chance, because the first setting has a value for each
    space = listed(number, *sizes)
    points = [combination(space, index) for index in spread_combinations(space, number, np.random.default_rng(seed))]
    for k, size in enumerate((number, *sizes)):
        often = np.bincount([int(point[f"algorithm.x{k}"]) for point in points], minlength=size)
        assert often.sum() == number
        assert often.max() - often.min() <= 1


@few
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 99))
def test_no_combination_is_drawn_twice(sizes: list[int], seed: int) -> None:
    total = math.prod(sizes)
    drawn = spread_combinations(listed(*sizes), total, np.random.default_rng(seed))
    assert sorted(drawn) == list(range(total))


def test_few_of_a_huge_range_are_drawn_without_going_through_it() -> None:
    space = (Dimension("algorithm.x", IntRange(1, 2**53)), *listed(2))
    drawn = [combination(space, index) for index in spread_combinations(space, 8, np.random.default_rng(0))]
    assert len({point["algorithm.x"] for point in drawn}) == 8
    assert sum(point["algorithm.x0"] == 0 for point in drawn) == 4
