"""Padding is never seen: neither by convolutions nor by a GRU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from fedapm.models.sequences import GRU, Convolutions, masked, step_mask, value_shapes
from tests.helpers.unit import few, refused
from tests.models.checks import fillers, noise, padded, seeded, size

lengths_of_three = st.lists(st.integers(0, 19), min_size=3, max_size=3)


def by_hand(network: Convolutions, signal: torch.Tensor, pool: int) -> torch.Tensor:
    """Convolution, rectifier, pooling, three times, on a sequence without padding."""
    steps = nn.Sequential()
    for convolution in (network.conv1, network.conv2, network.conv3):
        steps.extend([convolution, nn.ReLU(), nn.MaxPool1d(pool, ceil_mode=True)])
    return steps(signal).transpose(1, 2)


@few
@given(lengths_of_three, st.integers(0, 9), fillers, st.sampled_from([1, 2, 3]), st.integers(0, 99))
def test_convolutions_of_padded_signals_are_those_of_the_signals(
    lengths: list[int], more: int, filler: float, pool: int, seed: int
) -> None:
    network = seeded(lambda: Convolutions(2, pool), seed)
    signal = padded(noise(3, 2, 19 + more, seed=seed), lengths, filler, dim=2)
    known = torch.tensor(lengths)
    found, left = network(signal, known), network.output_lengths(known)
    for sample, length in enumerate(lengths):
        steps = int(left[sample])
        assert (steps > 0) == (length > 0), "a short sequence must not vanish"
        assert torch.equal(found[sample, steps:], torch.zeros_like(found[sample, steps:]))
        if length:
            alone = by_hand(network, signal[sample : sample + 1, :, :length], pool)
            assert_close(found[sample : sample + 1, :steps], alone)
            assert alone.shape[1] == steps


def test_without_lengths_everything_is_there() -> None:
    network = seeded(lambda: Convolutions(2))
    signal = noise(3, 2, 13)
    assert torch.equal(network(signal), network(signal, torch.tensor([13, 13, 13])))
    assert network.output_lengths(None) is None
    assert network(signal).shape == (3, 2, 128)


def test_a_pool_that_is_none_is_refused() -> None:
    with refused("pool 0"):
        Convolutions(3, pool=0)


def test_convolutions_are_counted_by_hand() -> None:
    assert size(Convolutions(7)) == (7 * 32 * 5 + 32) + (32 * 64 * 5 + 64) + (64 * 128 * 5 + 128)


@few
@given(lengths_of_three, st.integers(0, 9), fillers, st.integers(0, 99))
def test_a_gru_over_padded_steps_says_what_it_says_without(
    lengths: list[int], more: int, filler: float, seed: int
) -> None:
    gru = seeded(lambda: GRU(4, 5), seed)
    steps = padded(noise(3, 19 + more, 4, seed=seed), lengths, filler, dim=1)
    found = gru.states(steps, torch.tensor(lengths))
    assert bool(torch.isfinite(found).all())
    for sample, length in enumerate(lengths):
        if length:
            alone, _ = nn.GRU.forward(gru, steps[sample : sample + 1, :length])
            assert_close(found[sample : sample + 1, :length], alone)


def test_a_gru_can_always_be_differentiated() -> None:
    """cuDNN gives no gradients of a GRU in evaluation mode, and nothing in this one depends on the mode."""
    network = nn.Sequential(GRU(4, 5)).eval()
    assert not network.training
    assert network[0].training


@pytest.mark.parametrize("lengths", [None, torch.tensor([0, 2, 9, -1])])
def test_step_mask(lengths: torch.Tensor | None) -> None:
    found = step_mask(lengths, torch.zeros(4, 3, 7))
    expected = [[1, 1, 1]] * 4 if lengths is None else [[0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]]
    assert found.tolist() == torch.tensor(expected).bool().tolist()
    assert step_mask(lengths, torch.zeros(4, 7, 3), -1).tolist() == found.tolist()


def test_what_is_not_kept_has_no_gradient_even_where_it_is_not_finite() -> None:
    values = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
    kept = masked(values, torch.tensor([True, False, False]))
    assert kept.tolist() == [1.0, 0.0, 0.0]
    assert torch.autograd.grad(kept.sum(), values)[0].tolist() == [1.0, 0.0, 0.0]


def test_lengths_are_no_modalities() -> None:
    assert value_shapes([(3, 128), (7,), (), ()]) == [(3, 128), (7,)]
