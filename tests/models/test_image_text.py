"""ImageTextClassifier: built as the paper says, blind to padding, whole without one of its modalities."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fedapm.core.split import SplitRule
from fedapm.models import ImageTextClassifier
from tests.helpers.unit import few
from tests.models.checks import (
    check_dropout,
    check_forward_steps,
    check_learns,
    check_many_clients_at_once,
    fillers,
    noise,
    padded,
    seeded,
    size,
)


def small(dropout: float = 0.0) -> ImageTextClassifier:
    return ImageTextClassifier(classes=3, image_dim=7, text_dim=5, dropout=dropout)


def test_parameters_are_counted_by_hand() -> None:
    image = 1280 * 64 + 64
    gru = 3 * 64 * 512 + 3 * 64 * 64 + 3 * 64 + 3 * 64
    attention = (64 * 512 + 512) + (512 * 4 + 4)
    classifier = (4 * 64 * 64 + 64) + (64 * 8 + 8)
    assert size(ImageTextClassifier(classes=8)) == image + gru + attention + classifier
    narrower = 3 * 64 * 384 + 3 * 64 * 64 + 3 * 64 + 3 * 64
    assert size(ImageTextClassifier(classes=8, text_dim=384)) == image + narrower + attention + classifier


@pytest.mark.parametrize(
    ("preset", "layers"),
    [
        (
            "input",
            [
                "image_fc.weight",
                "image_fc.bias",
                "text_gru.weight_ih_l0",
                "text_gru.weight_hh_l0",
                "text_gru.bias_ih_l0",
                "text_gru.bias_hh_l0",
            ],
        ),
        ("output", ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]),
    ],
)
def test_a_preset_makes_the_papers_block_personal(preset: str, layers: list[str]) -> None:
    assert list(SplitRule(preset=preset).apply(small()).personal) == layers


@few
@given(
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 6),
    fillers,
    st.integers(0, 99),
)
def test_padding_never_changes_the_scores(
    words: list[int], pictures: list[bool], more: int, filler: float, seed: int
) -> None:
    network = seeded(small, seed)
    image, text = noise(3, 7, seed=seed), noise(3, 9 + more, 5, seed=seed + 1)
    there = torch.tensor(pictures).long()
    image[there == 0] = filler
    scores = network(image, padded(text, words, filler, dim=1), there, torch.tensor(words))
    assert torch.equal(scores, network(image, padded(text, words, 0.5, dim=1), there, torch.tensor(words)))
    assert bool(torch.isfinite(scores).all())
    for k, length in enumerate(words):
        # a missing text is one word of length 0
        parts = image[k : k + 1], text[k : k + 1, : max(length, 1)]
        assert_close(scores[k : k + 1], network(*parts, there[k : k + 1], torch.tensor([length])))


def test_without_lengths_both_modalities_are_there() -> None:
    network = seeded(small)
    image, text = noise(2, 7), noise(2, 4, 5)
    assert torch.equal(network(image, text), network(image, text, torch.tensor([1, 1]), torch.tensor([4, 4])))


@pytest.mark.parametrize(("missing", "branch"), [(0, "image_fc"), (1, "text_gru")])
def test_a_missing_modality_is_not_seen_and_not_trained(missing: int, branch: str) -> None:
    network = seeded(small)
    lengths = [torch.tensor([1, 1]), torch.tensor([4, 3])]
    lengths[missing] = torch.zeros(2, dtype=torch.int64)
    values = [noise(2, 7), noise(2, 4, 5)]
    scores = network(*values, *lengths)
    values[missing] = values[missing] + 100
    assert torch.equal(scores, network(*values, *lengths))
    scores.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        if not name.startswith("attention"):  # a picture alone is a single step, whose weight is always one
            assert bool((parameter.grad == 0).all()) == name.startswith(branch), name


def test_a_sample_with_nothing_at_all_has_scores_and_trains_no_branch() -> None:
    network = seeded(small)
    nothing = torch.zeros(2, dtype=torch.int64)
    nan = float("nan")
    scores = network(torch.full((2, 7), nan), torch.full((2, 4, 5), nan), nothing, nothing)
    assert bool(torch.isfinite(scores).all())
    scores.square().sum().backward()
    gradients = {n: p.grad for n, p in network.named_parameters()}
    assert all(bool(torch.isfinite(g).all()) for g in gradients.values())
    assert all(bool((g == 0).all()) for n, g in gradients.items() if not n.startswith("fc"))


def test_many_clients_at_once() -> None:
    lengths = torch.tensor([[1, 0, 1, 1]] * 3), torch.tensor([[4, 2, 0, 1], [1, 1, 4, 4], [3, 0, 2, 4]])
    targets = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0], [1, 1, 0, 2]])
    check_many_clients_at_once(small, (noise(3, 4, 7), noise(3, 4, 4, 5), *lengths), targets)


def test_cut_at_a_preset_it_computes_the_same() -> None:
    inputs = noise(3, 7), noise(3, 4, 5), torch.tensor([1, 0, 1]), torch.tensor([4, 2, 0])
    check_forward_steps(seeded(small), inputs)
    check_forward_steps(seeded(small), inputs[:2])


def test_half_precision_inputs_are_computed_in_the_networks_own() -> None:
    network = small()
    image, text = torch.randn(2, 7).half(), torch.randn(2, 4, 5).half()
    assert network(image, text).dtype == torch.float32
    assert torch.equal(network(image, text), network(image.float(), text.float()))


def test_it_learns() -> None:
    inputs = noise(12, 7), noise(12, 4, 5), torch.tensor([1, 1, 0] * 4), torch.tensor([4, 2, 3, 0] * 3)
    check_learns(seeded(small), inputs, torch.arange(12) % 3, lr=0.5, steps=60)


def test_dropout() -> None:
    check_dropout(small, (torch.randn(2, 7), torch.randn(2, 4, 5)))
