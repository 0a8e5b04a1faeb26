"""Attention pooling: a weighted mean of the steps that count, for each head."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fedapm.models.attention import AttentionPooling
from tests.helpers.unit import few
from tests.models.checks import fillers, noise, padded, seeded, size


def by_hand(network: AttentionPooling, steps: np.ndarray) -> np.ndarray:
    """The formula for one sample, in numpy: softmax over time of W₂·tanh(W₁h + b₁) + b₂, for each head."""
    w1, b1, w2, b2 = (p.detach().numpy() for p in network.parameters())
    scores = np.tanh(steps @ w1.T + b1) @ w2.T + b2
    weights = np.exp(scores) / np.exp(scores).sum(0)
    return np.concatenate([weights[:, head] @ steps for head in range(w2.shape[0])])


@few
@given(st.lists(st.integers(0, 8), min_size=3, max_size=3), st.integers(0, 5), fillers, st.integers(0, 99))
def test_padding_is_not_pooled(lengths: list[int], more: int, filler: float, seed: int) -> None:
    network = seeded(lambda: AttentionPooling(5, heads=3), seed)
    steps = padded(noise(3, 8 + more, 5, seed=seed), lengths, filler, dim=1)
    seen = torch.arange(8 + more) < torch.tensor(lengths).unsqueeze(1)
    pooled = network(steps, seen)
    assert pooled.shape == (3, 15)
    for sample, length in enumerate(lengths):
        expected = by_hand(network, steps[sample, :length].numpy()) if length else np.zeros(15)
        assert_close(pooled[sample].detach(), torch.from_numpy(expected))


def test_steps_that_count_need_not_come_first() -> None:
    network = seeded(lambda: AttentionPooling(5, heads=2))
    steps = noise(1, 6, 5)
    seen = torch.tensor([[False, True, False, True, True, False]])
    expected = by_hand(network, steps[0, [1, 3, 4]].numpy())
    assert_close(network(steps, seen)[0].detach(), torch.from_numpy(expected))


def test_a_sample_without_steps_has_gradients_of_zero() -> None:
    network = seeded(lambda: AttentionPooling(5, heads=2))
    steps = noise(2, 4, 5).requires_grad_()
    pooled = network(steps, torch.zeros(2, 4, dtype=torch.bool))
    gradients = torch.autograd.grad(pooled.sum(), [steps, *network.parameters()])
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients)


def test_the_papers_six_heads_of_width_128() -> None:
    network = AttentionPooling(128, heads=6)
    assert size(network) == (128 * 512 + 512) + (512 * 6 + 6)
    assert network(torch.randn(2, 9, 128), torch.ones(2, 9, dtype=torch.bool)).shape == (2, 6 * 128)
