"""Every parameter is in exactly one block, and whoever names one wrongly is told which."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedapm
from fedapm import Federation, SplitRule
from fedapm.core.split import Split, check_same_shared, matches
from fedapm.models import CNN, DigitsNet
from tests.helpers.unit import blob_clients, blobs, few, refused, two_layers

parts = st.sampled_from(
    [nn.ReLU, lambda: nn.Linear(2, 2), lambda: nn.Linear(2, 2, bias=False), lambda: nn.LayerNorm(2)]
)


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    """Sequences in sequences, some parameters of which may not require a gradient."""
    inner = [
        nn.Sequential(*(make() for make in draw(st.lists(parts, max_size=3)))) for _ in range(draw(st.integers(0, 3)))
    ]
    module = nn.Sequential(nn.Linear(2, 2), *inner)
    for parameter in module.parameters():
        parameter.requires_grad_(draw(st.integers(0, 4)) > 0)
    return module


def parameter_names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


@few
@given(modules(), st.data())
def test_every_parameter_is_in_exactly_one_block_in_the_networks_order(module: nn.Module, data: st.DataObject) -> None:
    every = parameter_names(module)
    personal = data.draw(st.lists(st.sampled_from(every), unique=True))
    frozen = data.draw(st.lists(st.sampled_from(every), unique=True).map(lambda n: [x for x in n if x not in personal]))
    split = SplitRule(personal=tuple(personal), frozen=tuple(frozen)).apply(module)
    for block in (split.shared, split.personal, split.frozen):
        assert list(block) == [n for n in every if n in block]
    assert sorted(split.shared + split.personal + split.frozen) == sorted(every)
    assert set(split.personal) == set(personal)
    still = {n for n, p in module.named_parameters() if not p.requires_grad}
    assert set(split.frozen) == set(frozen) | (still - set(personal))


@few
@given(modules(), st.data())
def test_naming_the_shared_part_is_naming_the_personal_one(module: nn.Module, data: st.DataObject) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    every = parameter_names(module)
    personal = data.draw(st.lists(st.sampled_from(every), unique=True, min_size=1, max_size=len(every) - 1))
    shared = [n for n in every if n not in personal]
    expected = SplitRule(personal=tuple(personal)).apply(module)
    assert SplitRule(shared=tuple(shared)).apply(module) == expected
    assert SplitRule(shared=tuple(shared), personal=tuple(personal)).apply(module) == expected


@few
@given(modules(), st.data())
def test_scopes_keep_every_trained_parameter_in_the_networks_order(module: nn.Module, data: st.DataObject) -> None:
    every = parameter_names(module)
    personal = data.draw(st.lists(st.sampled_from(every), unique=True))
    split = SplitRule(personal=tuple(personal)).apply(module)
    trained = tuple(n for n in every if n in split.shared + split.personal)
    assert split.scoped("split") == split
    assert split.scoped("whole") == Split(trained, (), split.frozen)
    assert split.scoped("none") == Split((), trained, split.frozen)


def test_nothing_said_means_everything_is_shared() -> None:
    network = DigitsNet()
    assert SplitRule().apply(network) == Split(tuple(parameter_names(network)), ())


@pytest.mark.parametrize(
    ("network", "preset", "stage"),
    [
        (DigitsNet(), "input", ("stem",)),
        (DigitsNet(), "output", ("head",)),
        (CNN(), "input", ("conv1",)),
        (CNN(), "output", ("fc1", "fc2")),
    ],
)
def test_a_preset_makes_exactly_its_stage_personal(network: nn.Module, preset: str, stage: tuple[str, ...]) -> None:
    split = SplitRule(preset=preset).apply(network)
    assert split.personal == tuple(f"{layer}.{kind}" for layer in stage for kind in ("weight", "bias"))
    assert set(split.shared) == set(parameter_names(network)) - set(split.personal)


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("0.weight", ["0.weight"]),
        ("0", ["0.weight", "0.bias"]),
        ("*.bias", ["0.bias", "1.0.bias", "1.1.bias"]),
        ("1.*", ["1.0.weight", "1.0.bias", "1.1.weight", "1.1.bias"]),
        ("1.?.weight", ["1.0.weight", "1.1.weight"]),
    ],
)
def test_a_pattern_is_a_name_a_submodule_or_a_glob(pattern: str, meant: list[str]) -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    assert list(SplitRule(personal=(pattern,)).apply(network).personal) == meant


def test_the_documented_glob_names_submodules() -> None:
    block = {"norm": nn.LayerNorm(2), "linear": nn.Linear(2, 2)}
    network = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict(block)])})
    personal = SplitRule(personal=("blocks.*.norm",)).apply(network).personal
    assert personal == ("blocks.0.norm.weight", "blocks.0.norm.bias")


def test_a_submodule_is_not_the_beginning_of_a_name() -> None:
    assert matches("head.weight", "head")
    assert not matches("head2.weight", "head")
    assert not matches("Head.weight", "head")


def test_a_pattern_that_matches_nothing_names_the_closest() -> None:
    with refused("personal pattern 'haed'", "'head'"):
        SplitRule(personal=("haed",)).apply(DigitsNet())
    with refused("frozen pattern 'stem.wieght'", "'stem.weight'"):
        SplitRule(frozen=("stem.wieght",)).apply(DigitsNet())
    with refused("shared pattern 'zzzz'", "'stem.weight'"):
        SplitRule(shared=("zzzz",)).apply(DigitsNet())


def test_overlapping_patterns_are_both_named() -> None:
    with refused("'head.weight'", "personal", "'head'", "frozen", "'*.weight'"):
        SplitRule(personal=("head",), frozen=("*.weight",)).apply(DigitsNet())


def test_two_patterns_of_one_block_may_overlap() -> None:
    assert SplitRule(personal=("head", "head.bias")).apply(DigitsNet()).personal == ("head.weight", "head.bias")


def test_both_blocks_given_must_cover_everything() -> None:
    with refused("'body.weight'", "neither shared nor personal"):
        SplitRule(shared=("stem",), personal=("head",)).apply(DigitsNet())
    assert SplitRule(shared=("stem",), personal=("head",), frozen=("body",)).apply(DigitsNet()).frozen == (
        "body.weight",
        "body.bias",
    )


def test_a_preset_and_patterns_together_are_refused() -> None:
    with refused("'output'", "not both"):
        SplitRule(preset="output", personal=("stem",)).apply(DigitsNet())


def test_a_preset_needs_a_network_with_that_stage() -> None:
    with refused("Sequential", "no stages", "personal=[...]"):
        SplitRule(preset="output").apply(two_layers())
    with refused("DigitsNet", "'split_input'", "'input'"):
        SplitRule(preset="split_input").apply(DigitsNet())


def test_parameters_without_gradient_are_frozen_unasked() -> None:
    network = DigitsNet()
    network.stem.requires_grad_(False)
    split = SplitRule(preset="output").apply(network)
    assert split.frozen == ("stem.weight", "stem.bias")
    assert split.shared == ("body.weight", "body.bias")


def test_frozen_parameters_are_neither_trained_nor_sent() -> None:
    network = two_layers()
    result = fedapm.train(blob_clients(), network, personal=["head"], frozen=["body.weight"], rounds=1, fraction=1.0)
    assert all(torch.equal(result.model(c)[0].weight, network[0].weight) for c in "abc")
    assert not torch.equal(result.model("a")[0].bias, network[0].bias)
    assert result.history["bytes_down"].iloc[-1] == 3 * 4 * network[0].bias.numel()


def test_same_shared_parts_pass() -> None:
    check_same_shared({"w": (2, 3), "b": (3,)}, {"b": [3], "w": torch.Size([2, 3])}, "b")


def test_a_shared_part_of_another_shape_is_refused() -> None:
    with refused("client 7", "'body.weight'", "(3, 2)", "(2, 3)"):
        check_same_shared({"body.weight": (2, 3)}, {"body.weight": (3, 2)}, "7")


def test_a_missing_shared_parameter_names_the_closest() -> None:
    with refused("client 7", "other clients have", "'body.weight'", "closest name is 'bodi.weight'"):
        check_same_shared({"body.weight": (2,)}, {"bodi.weight": (2,)}, "7")


def test_an_extra_shared_parameter_is_refused() -> None:
    with refused("client 7", "it has", "'body.scale'"):
        check_same_shared({"body.weight": (2,)}, {"body.weight": (2,), "body.scale": (2,)}, "7")


def unequal_clients() -> Federation:
    """Two clients that measure four and seven things and tell two and five classes apart."""
    return Federation.from_clients({"small": blobs(20, 4, 2), "large": blobs(40, 7, 5)})


def unequal_network(client: fedapm.ClientData) -> nn.Module:
    network = nn.Sequential()
    network.add_module("stem", nn.Linear(client.train.inputs[0].shape[1], 6))
    network.add_module("body", nn.Linear(6, 6))
    network.add_module("head", nn.Linear(6, client.classes))
    return network


@pytest.mark.parametrize("algorithm", ["fedapm", "fedalt", "fedsim", "local"])
def test_clients_with_stems_and_heads_of_their_own_train_together(algorithm: str) -> None:
    options = {"shared": ["body"], "fraction": 1.0, "rounds": 3, "batch_size": 10}
    result = fedapm.train(unequal_clients(), unequal_network, algorithm=algorithm, **options)
    assert result.history["train_loss"].iloc[-1] < result.history["train_loss"].iloc[0]
    small, large = result.model("small"), result.model("large")
    assert (small.stem.in_features, small.head.out_features) == (4, 2)
    assert (large.stem.in_features, large.head.out_features) == (7, 5)


def test_one_model_for_all_refuses_clients_with_parts_of_their_own() -> None:
    with refused("client large", "'stem.weight'", "(6, 7)", "(6, 4)"):
        fedapm.train(unequal_clients(), unequal_network, algorithm="fedavg", shared=["body"], rounds=1)


def test_clients_whose_networks_differ_in_a_plain_attribute_keep_their_own() -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.body, self.head, self.scale = nn.Linear(4, 4), nn.Linear(4, 3), scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x)) * self.scale

    scales = {"a": 1.0, "b": 2.0, "c": 3.0}
    result = fedapm.train(blob_clients(), lambda c: Scaled(scales[c.id]), personal=["head"], rounds=1)
    assert {c: result.model(c).scale for c in scales} == scales
