"""A draw depends on its key and on nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapm.core.random import key, numpy_generator, seeded_globally, torch_generator, torch_generators
from tests.helpers.unit import few

KEYS = [(0, "batches", 1, 2), (1, "batches", 1, 2), (0, "forward", 1, 2), (0, "batches", 2, 2), (0, "batches", 1, 3)]


def draw_torch(*of) -> list[float]:
    return torch.rand(4, generator=torch_generator(*of)).tolist()


def draw_numpy(*of) -> list[float]:
    return numpy_generator(*of).random(4).tolist()


@pytest.mark.parametrize("draw", [draw_torch, draw_numpy])
def test_same_key_same_draw(draw) -> None:
    assert draw(*KEYS[0]) == draw(*KEYS[0])


@pytest.mark.parametrize("draw", [draw_torch, draw_numpy])
def test_another_seed_purpose_client_or_round_draws_otherwise(draw) -> None:
    for a, b in itertools.combinations(KEYS, 2):
        assert draw(*a) != draw(*b), (a, b)


@pytest.mark.parametrize("draw", [draw_torch, draw_numpy])
def test_order_of_calls_does_not_matter(draw) -> None:
    forwards = {k: draw(*k) for k in KEYS}
    backwards = {k: draw(*k) for k in reversed(KEYS)}
    assert forwards == backwards


def test_streams_leave_the_global_generators_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    draw_torch(*KEYS[0])
    draw_numpy(*KEYS[0])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_global_stream_puts_torch_on_the_key_and_back() -> None:
    before = torch.get_rng_state()
    with seeded_globally(torch.device("cpu"), *KEYS[0]):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    with seeded_globally(torch.device("cpu"), *KEYS[0]):
        again = torch.rand(3)
    with seeded_globally(torch.device("cpu"), *KEYS[1]):
        other = torch.rand(3)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def draw_and_fail() -> None:
    with seeded_globally(torch.device("cpu"), *KEYS[0]):
        torch.rand(3)
        raise ArithmeticError


def test_global_stream_puts_torch_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ArithmeticError):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_keys_that_read_alike_are_different() -> None:
    alike = [
        (0, "p", "a", "bc"),
        (0, "p", "ab", "c"),
        (0, "p", "abc"),
        (0, "pa", "bc"),
        (0, "p", 1, 23),
        (0, "p", 12, 3),
        (0, "p", 123),
        (0, "p"),
        (0, "p", ""),
    ]
    assert len({key(*k) for k in alike}) == len(alike)


def test_a_number_and_its_text_are_different_keys() -> None:
    assert key(0, "p", 1) != key(0, "p", "1")


@few
@given(st.integers(-(2**70), 2**70), st.text("ab\x1fé ", max_size=8), st.lists(st.integers(-9, 10**9), max_size=3))
def test_every_key_is_a_seed_that_both_libraries_take(seed: int, purpose: str, ids: list[int]) -> None:
    assert 0 <= key(seed, purpose, *ids) < 2**63
    draw_torch(seed, purpose, *ids)
    draw_numpy(seed, purpose, *ids)


def test_neighbouring_keys_are_not_correlated() -> None:
    draws = np.stack([numpy_generator(0, "clients", k).random(500) for k in range(20)])
    off_diagonal = np.corrcoef(draws)[~np.eye(20, dtype=bool)]
    assert np.abs(off_diagonal).max() < 0.25


def test_the_streams_of_several_clients_are_those_of_each_by_itself():
    together = torch_generators(7, "batches", [3, 10, 0], 2)
    assert [s.initial_seed() for s in together] == [
        torch_generator(7, "batches", k, 2).initial_seed() for k in (3, 10, 0)
    ]
