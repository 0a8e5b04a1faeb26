"""The splits that are tried: what each network offers, under which names, and never what is frozen."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedapm.core.candidates import EVERYTHING, MOST, NOTHING, SplitCandidate, patterns, split_candidates
from fedapm.core.split import SplitRule
from fedapm.models import MODELS
from tests.helpers.unit import refused


def personal(candidate: SplitCandidate, network: nn.Module, frozen: tuple[str, ...] = ()) -> set[str]:
    return {*SplitRule(None, candidate.personal, candidate.shared, frozen).apply(network).personal}


def by_name(*networks: nn.Module, frozen: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """The personal parameters of each candidate, in the first network."""
    return {c.name: personal(c, networks[0], frozen) for c in split_candidates(networks, frozen)}


def mlp(*sizes: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def both(*layers: str) -> set[str]:
    return {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}


def test_a_sequential_network_is_cut_front_and_back() -> None:
    assert by_name(mlp(4, 5, 6, 3)) == {
        NOTHING: set(),
        "biases": {"0.bias", "2.bias", "4.bias"},
        "last layer (4)": both("4"),
        "first layer (0)": both("0"),
        "last two layers (2, 4)": both("2", "4"),
        "first two layers (0, 2)": both("0", "2"),
        EVERYTHING: both("0", "2", "4"),
    }


def test_candidates_are_sorted_by_what_is_personal() -> None:
    network = mlp(4, 5, 6, 3)
    total = sum(p.numel() for p in network.parameters())
    found = split_candidates([network])
    for candidate in found:
        own = sum(network.get_parameter(name).numel() for name in personal(candidate, network))
        assert candidate.share == pytest.approx(own / total)
    shares = [candidate.share for candidate in found]
    assert shares == sorted(shares)
    assert (found[0].name, found[-1].name) == (NOTHING, EVERYTHING)


class Staged(nn.Module):
    stages: ClassVar = {"input": ("stem",), "output": ("fc1", "fc2"), "head": ("fc2",), "inner": ("body.a",)}

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.body = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})
        self.fc1, self.fc2 = nn.Linear(6, 6), nn.Linear(6, 2)


def test_stages_are_candidates_and_name_the_cuts_they_are() -> None:
    found = by_name(Staged())
    assert found["first layer (stem), stage input"] == both("stem")
    assert found["last two layers (fc1, fc2), stage output"] == both("fc1", "fc2")
    assert found["last layer (fc2), stage head"] == both("fc2")
    assert found["stage inner"] == both("body.a")
    assert len({frozenset(names) for names in found.values()}) == len(found)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, lambda width: nn.GroupNorm(2, width), nn.LayerNorm])
def test_a_normalization_layer_goes_with_the_layer_before_it_and_by_itself(norm: Any) -> None:
    network = nn.Sequential(nn.Linear(4, 8), norm(8), nn.ReLU(), nn.Linear(8, 2))
    found = by_name(network)
    assert found["normalization"] == both("1")
    assert found["first layer (0)"] == both("0", "1")
    assert found["last layer (3)"] == both("3")


def test_biases_of_all_kinds_are_found() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.attention = nn.GRU(4, 4), nn.MultiheadAttention(4, 2)

    network = Recurrent()
    expected = {name for name, p in network.named_parameters() if p.dim() == 1}
    assert by_name(network)["biases"] == expected


def test_frozen_parameters_are_left_alone() -> None:
    network = mlp(4, 5, 6, 3)
    network[2].bias.requires_grad_(False)
    found = by_name(network, frozen=("0",))
    assert found == {
        NOTHING: set(),
        "last layer (4)": both("4"),
        "first layer (2)": {"2.weight"},
        "biases": {"4.bias"},
        EVERYTHING: {"2.weight", *both("4")},
    }


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_bundled_network_has_a_few(name: str) -> None:
    network = MODELS[name]()
    found = split_candidates([network])
    assert 4 <= len(found) <= MOST
    assert len({frozenset(personal(candidate, network)) for candidate in found}) == len(found)
    assert found == split_candidates([MODELS[name]()])


def test_a_deep_network_is_cut_at_few_places_that_are_dense_at_its_ends() -> None:
    found = by_name(mlp(*[3] * 40))
    assert len(found) <= MOST
    assert {"first layer (0)", "last layer (76)", "last 38 layers", "first 38 layers"} <= found.keys()
    sizes = sorted(len(names) // 2 for name, names in found.items() if name.startswith("last"))
    assert sizes[0] == 1
    assert sizes[1] <= 5


def test_parameters_of_the_network_itself_are_layers() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.u, self.v = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x

    assert by_name(Two()) == {
        NOTHING: set(),
        "last layer (v)": {"v"},
        "first layer (u)": {"u"},
        EVERYTHING: {"u", "v"},
    }


def test_of_networks_that_differ_only_what_is_common_is_shared() -> None:
    small, large = mlp(4, 5, 5, 2), mlp(4, 5, 5, 3)
    found = split_candidates([small, large])
    assert found[0].name == "nothing personal but what differs between clients"
    assert personal(found[0], small) == personal(found[0], large) == both("4")
    for candidate in found:
        assert personal(candidate, small) == personal(candidate, large) >= both("4")
    assert personal(found[-1], small) == both("0", "2", "4")


def test_networks_with_nothing_in_common_are_refused() -> None:
    with refused("nothing can be shared", "local"):
        split_candidates([mlp(4, 2), mlp(5, 2, 3), nn.GRU(2, 2)])


def test_a_network_without_anything_to_train_is_refused() -> None:
    with refused("no parameter to train"):
        split_candidates([mlp(4, 2)], frozen=("*",))


def test_patterns_are_as_short_as_they_can_be_and_match_nothing_else() -> None:
    universe = ["a.x.weight", "a.x.bias", "a.y.weight", "b[0].weight", "b[1].weight"]
    assert patterns(["a.x.weight", "a.x.bias"], universe) == ("a.x",)
    assert patterns(["a.x.weight", "a.x.bias", "a.y.weight"], universe) == ("a",)
    assert patterns(["a.x.bias", "b[0].weight"], universe) == ("a.x.bias", "b[[]0]")
