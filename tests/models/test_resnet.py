"""ResNet18: the usual layers, normalised in groups, with a stem that suits the pictures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedapm.core.split import SplitRule
from fedapm.models import ResNet18
from tests.helpers.unit import refused
from tests.models.checks import (
    check_dropout,
    check_forward_steps,
    check_learns,
    check_many_clients_at_once,
    noise,
    seeded,
    size,
)


def narrow(dropout: float = 0.0) -> ResNet18:
    return ResNet18(classes=3, width=4, dropout=dropout)


def maps(network: ResNet18, side: int) -> list[int]:
    """How wide the maps are after the stem and after each group."""
    hidden, found = torch.zeros(1, 3, side, side), []
    for part in (network.stem, network.group1, network.group2, network.group3, network.group4):
        hidden = part(hidden)
        found.append(hidden.shape[-1])
    return found


@pytest.mark.parametrize(("stem", "kernel"), [("small", 3), ("large", 7)])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_parameters_are_counted_by_hand(stem: str, kernel: int, norm: str) -> None:
    first = 3 * 64 * kernel * kernel + 2 * 64
    group1 = 4 * (64 * 64 * 9 + 2 * 64)
    group2 = (64 * 128 * 9 + 2 * 128) + 3 * (128 * 128 * 9 + 2 * 128) + (64 * 128 + 2 * 128)
    group3 = (128 * 256 * 9 + 2 * 256) + 3 * (256 * 256 * 9 + 2 * 256) + (128 * 256 + 2 * 256)
    group4 = (256 * 512 * 9 + 2 * 512) + 3 * (512 * 512 * 9 + 2 * 512) + (256 * 512 + 2 * 512)
    last = 512 * 100 + 100
    network = ResNet18(classes=100, stem=stem, norm=norm)
    assert size(network) == first + group1 + group2 + group3 + group4 + last
    assert size(network.group4) > 0.7 * size(network)


def test_groups_need_no_buffers_and_batches_do() -> None:
    assert list(ResNet18(classes=3, width=4).buffers()) == []
    names = {n.rsplit(".", 1)[1] for n, _ in ResNet18(classes=3, width=4, norm="batch").named_buffers()}
    assert names == {"running_mean", "running_var", "num_batches_tracked"}


def test_a_sample_does_not_depend_on_its_batch() -> None:
    network, pictures = seeded(narrow), noise(4, 3, 16, 16)
    torch.testing.assert_close(network(pictures)[:1], network(pictures[:1]))


@pytest.mark.parametrize(
    ("side", "expected"), [(32, [32, 32, 16, 8, 4]), (64, [32, 32, 16, 8, 4]), (224, [56, 56, 28, 14, 7])]
)
def test_the_stem_suits_the_pictures(side: int, expected: list[int]) -> None:
    network = ResNet18(classes=3, width=4, **ResNet18.arguments_for([(3, side, side)]))
    assert maps(network, side) == expected


def test_grey_pictures() -> None:
    network = ResNet18(classes=3, width=4, **ResNet18.arguments_for([(1, 28, 28)]))
    assert network(torch.randn(2, 1, 28, 28)).shape == (2, 3)


@pytest.mark.parametrize(
    ("preset", "layers"),
    [("input", ["stem.conv.weight", "stem.norm.weight", "stem.norm.bias"]), ("output", ["fc.weight", "fc.bias"])],
)
def test_a_preset_makes_its_block_personal(preset: str, layers: list[str]) -> None:
    assert list(SplitRule(preset=preset).apply(narrow()).personal) == layers


def test_many_clients_at_once() -> None:
    targets = torch.tensor([[0, 1], [2, 2], [1, 0]])
    check_many_clients_at_once(narrow, (noise(3, 2, 3, 16, 16),), targets)


def test_cut_at_a_preset_it_computes_the_same() -> None:
    check_forward_steps(seeded(narrow), (noise(2, 3, 16, 16),))


def test_half_precision_inputs_are_computed_in_the_networks_own() -> None:
    network, pictures = narrow(), torch.randn(2, 3, 16, 16).half()
    assert network(pictures).dtype == torch.float32
    assert torch.equal(network(pictures), network(pictures.float()))


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_it_learns(norm: str) -> None:
    network = seeded(lambda: ResNet18(classes=3, width=4, norm=norm))
    check_learns(network, (noise(12, 3, 16, 16),), torch.arange(12) % 3, lr=0.1, steps=20)


def test_dropout() -> None:
    check_dropout(narrow, (torch.randn(2, 3, 16, 16),))


def test_a_block_that_changes_nothing_passes_on_what_came_in() -> None:
    block = ResNet18(classes=3, width=4).group1[0]
    nn.init.zeros_(block.norm2.weight)
    hidden = torch.rand(1, 4, 8, 8)
    assert torch.equal(block(hidden), hidden)


def test_unknown_kinds_are_refused() -> None:
    with refused("stem 'smal'", "'small'"):
        ResNet18(stem="smal")
    with refused("norm 'bacth'", "'batch'"):
        ResNet18(norm="bacth")
