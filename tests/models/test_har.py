"""HARClassifier: built as the paper says, blind to padding, whole without one of its sensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fedapm.core.split import SplitRule
from fedapm.models import HARClassifier
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

lengths_of_three = st.lists(st.integers(0, 17), min_size=3, max_size=3)


def network_of_three(dropout: float = 0.0) -> HARClassifier:
    return HARClassifier(classes=3, dropout=dropout)


def convolution_names(sensor: str) -> list[str]:
    return [f"{sensor}_conv.conv{k}.{kind}" for k in (1, 2, 3) for kind in ("weight", "bias")]


def test_parameters_are_counted_by_hand() -> None:
    convolutions = (3 * 32 * 5 + 32) + (32 * 64 * 5 + 64) + (64 * 128 * 5 + 128)
    gru = 3 * 128 * 128 + 3 * 128 * 128 + 3 * 128 + 3 * 128
    attention = (128 * 512 + 512) + (512 * 6 + 6)
    classifier = (6 * 128 * 64 + 64) + (64 * 8 + 8)
    assert size(HARClassifier(classes=8)) == 2 * convolutions + 2 * gru + attention + classifier


@pytest.mark.parametrize(
    ("preset", "layers"),
    [
        ("split_input", convolution_names("acc")),
        ("input", convolution_names("acc") + convolution_names("gyro")),
        ("output", ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]),
    ],
)
def test_a_preset_makes_the_papers_block_personal(preset: str, layers: list[str]) -> None:
    assert list(SplitRule(preset=preset).apply(network_of_three()).personal) == layers


@few
@given(lengths_of_three, lengths_of_three, st.integers(0, 6), fillers, st.sampled_from([1, 2]), st.integers(0, 9))
def test_padding_never_changes_the_scores(
    accs: list[int], gyros: list[int], more: int, filler: float, pool: int, seed: int
) -> None:
    network = seeded(lambda: HARClassifier(classes=3, pool=pool), seed)
    acc, gyro = noise(3, 3, 17 + more, seed=seed), noise(3, 3, 17, seed=seed + 1)
    lengths = torch.tensor(accs), torch.tensor(gyros)
    scores = network(padded(acc, accs, filler, 2), padded(gyro, gyros, filler, 2), *lengths)
    assert torch.equal(scores, network(padded(acc, accs, 0.5, 2), padded(gyro, gyros, -0.5, 2), *lengths))
    assert bool(torch.isfinite(scores).all())
    for k, (a, g) in enumerate(zip(accs, gyros, strict=True)):
        # a missing sensor is one reading of length 0
        parts = acc[k : k + 1, :, : max(a, 1)], gyro[k : k + 1, :, : max(g, 1)]
        assert_close(scores[k : k + 1], network(*parts, torch.tensor([a]), torch.tensor([g])))


def test_without_lengths_both_sensors_are_there() -> None:
    network = seeded(network_of_three)
    acc, gyro = noise(2, 3, 21), noise(2, 3, 16)
    assert torch.equal(network(acc, gyro), network(acc, gyro, torch.tensor([21, 21]), torch.tensor([16, 16])))


@pytest.mark.parametrize(("missing", "branch"), [(0, "acc_"), (1, "gyro_")])
def test_a_missing_sensor_is_not_seen_and_not_trained(missing: int, branch: str) -> None:
    network = seeded(network_of_three)
    lengths = [torch.tensor([16, 13]), torch.tensor([16, 5])]
    lengths[missing] = torch.zeros(2, dtype=torch.int64)
    values = [noise(2, 3, 16), noise(2, 3, 16, seed=1)]
    scores = network(*values, *lengths)
    values[missing] = values[missing] + 100
    assert torch.equal(scores, network(*values, *lengths))
    scores.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        if name != "attention.score.bias":  # the weights of a head do not change with it
            assert bool((parameter.grad == 0).all()) == name.startswith(branch), name


def test_a_sample_with_nothing_at_all_has_scores_and_trains_no_branch() -> None:
    network = seeded(network_of_three)
    nothing, nan = torch.zeros(2, dtype=torch.int64), torch.full((2, 3, 16), float("nan"))
    scores = network(nan, nan, nothing, nothing)
    assert bool(torch.isfinite(scores).all())
    scores.square().sum().backward()
    gradients = {n: p.grad for n, p in network.named_parameters()}
    assert all(bool(torch.isfinite(g).all()) for g in gradients.values())
    assert all(bool((g == 0).all()) for n, g in gradients.items() if not n.startswith("fc"))


@pytest.mark.parametrize("pool", [1, 2])
def test_many_clients_at_once(pool: int) -> None:
    lengths = torch.tensor([[11, 0, 3, 8]] * 3), torch.tensor([[11, 2, 0, 1], [1, 1, 4, 4], [3, 0, 2, 4]])
    targets = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0], [1, 1, 0, 2]])
    inputs = noise(3, 4, 3, 11), noise(3, 4, 3, 11, seed=1), *lengths
    check_many_clients_at_once(lambda: HARClassifier(classes=3, pool=pool), inputs, targets)


def test_cut_at_a_preset_it_computes_the_same() -> None:
    inputs = noise(3, 3, 16), noise(3, 3, 16, seed=1), torch.tensor([16, 0, 5]), torch.tensor([9, 16, 0])
    check_forward_steps(seeded(network_of_three), inputs)
    check_forward_steps(seeded(network_of_three), inputs[:2])


def test_half_precision_inputs_are_computed_in_the_networks_own() -> None:
    network = network_of_three()
    acc, gyro = torch.randn(2, 3, 16).half(), torch.randn(2, 3, 16).half()
    assert network(acc, gyro).dtype == torch.float32
    assert torch.equal(network(acc, gyro), network(acc.float(), gyro.float()))


def test_it_learns() -> None:
    lengths = torch.tensor([16, 16, 9] * 4), torch.tensor([16, 16, 0, 3] * 3)
    inputs = noise(12, 3, 16), noise(12, 3, 16, seed=1), *lengths
    check_learns(seeded(network_of_three), inputs, torch.arange(12) % 3, lr=0.5, steps=60)


def test_dropout() -> None:
    check_dropout(network_of_three, (torch.randn(2, 3, 16), torch.randn(2, 3, 16)))
