"""All networks: made to the data's measure by name, refused in one line, and trained by every kind of method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedapm
from fedapm import Federation, models
from fedapm.core.samples import Samples
from fedapm.core.split import SplitRule
from fedapm.data.clients import ClientData
from fedapm.models import CNN, MODELS
from tests.helpers.unit import refused
from tests.models.checks import check_forward_steps, check_many_clients_at_once, noise, seeded, size

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "digits": [(1, 8, 8)],
    "cnn": [(3, 16, 16)],
    "image-text": [(9,), (4, 7), (), ()],
    "har": [(3, 16), (3, 16), (), ()],
    "mm-action": [(16, 9), (4, 7), (), ()],
    "resnet18": [(3, 8, 8)],
    "mlp": [(9,)],
}
"""The inputs of one sample, as a federation tells them."""
UNTRAINED = [name for name in MODELS if name not in ("text", "image")]
"""Networks that begin at random; tests/adapters has those with published weights."""


def sample(shapes: list[tuple[int, ...]], count: int, half: bool = False) -> tuple[torch.Tensor, ...]:
    """Random values, and lengths of which some are short and one is 0."""
    values = [torch.randn(count, *shape) for shape in shapes if shape]
    lengths = [torch.randint(1, 5, (count,)) for shape in shapes if not shape]
    if lengths:
        lengths[0][0] = 0
    return (*(v.half() if half else v for v in values), *lengths)


def test_the_names_are_stable() -> None:
    assert list(MODELS) == ["digits", "cnn", "image-text", "har", "mm-action", "resnet18", "mlp", "text", "image"]
    assert list(SHAPES) == UNTRAINED


@pytest.mark.parametrize("name", UNTRAINED)
@pytest.mark.parametrize("classes", [2, 7])
def test_classes_and_sizes_come_from_the_data(name: str, classes: int) -> None:
    network = models.factory(name, classes, {}, SHAPES[name])()
    assert network(*sample(SHAPES[name], 3)).shape == (3, classes)


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("cnn", [(1, 28, 28)], {"channels": 1, "size": 28}),
        ("cnn", [(3, 64, 64)], {"channels": 3, "size": 64}),
        ("image-text", [(1280,), (30, 512), (), ()], {"image_dim": 1280, "text_dim": 512}),
        ("image-text", [(1280,), (30, 384)], {"image_dim": 1280, "text_dim": 384}),
        ("har", [(3, 128), (3, 128), (), ()], {"axes": 3}),
        ("mm-action", [(600, 80), (10, 1280), (), ()], {"audio_dim": 80, "video_dim": 1280}),
        ("mm-action", [(600, 64), ()], {"audio_dim": 64, "video_dim": 0}),
        ("mm-action", [(600, 64)], {"audio_dim": 64, "video_dim": 0}),
        ("resnet18", [(3, 32, 32)], {"channels": 3, "stem": "small", "stride": 1}),
        ("resnet18", [(3, 64, 64)], {"channels": 3, "stem": "small", "stride": 2}),
        ("resnet18", [(3, 224, 224)], {"channels": 3, "stem": "large"}),
        ("mlp", [(54,)], {"features": 54}),
    ],
)
def test_arguments_for_shapes(name: str, shapes: list[tuple[int, ...]], expected: dict[str, Any]) -> None:
    assert MODELS[name].arguments_for(shapes) == expected


def test_named_options_win_over_what_the_data_suggest() -> None:
    network = models.factory("resnet18", 5, {"width": 4, "stride": 1}, [(3, 64, 64)])()
    assert network.stem.conv.stride == (1, 1)


@pytest.mark.parametrize(
    ("name", "shapes", "mentions"),
    [
        ("cnn", [(9,), (4, 7), (), ()], ["square images", "(9), (4, 7)"]),
        ("cnn", [(3, 16, 24)], ["square images", "(3, 16, 24)"]),
        ("cnn", [(3, 3, 3)], ["4 pixels"]),
        ("resnet18", [(3, 16), (3, 16), (), ()], ["images (channels, height, width)", "(3, 16), (3, 16)"]),
        ("image-text", [(3, 32, 32)], ["of a text (steps, features)", "(3, 32, 32)"]),
        ("har", [(3, 32, 32)], ["two sensors", "(3, 32, 32)"]),
        ("har", [(3, 128), (1, 128), (), ()], ["as many axes"]),
        ("har", [(600, 80), ()], ["two sensors", "(600, 80)"]),
        ("mm-action", [(3, 32, 32)], ["audio (time, features)", "(3, 32, 32)"]),
        ("mm-action", [(9, 9), (9, 9), (9, 9), (), (), ()], ["(9, 9), (9, 9), (9, 9)"]),
        ("mlp", [(3, 32, 32)], ["one row of features", "(3, 32, 32)"]),
        ("mlp", [(9,), (9,)], ["one row of features", "(9), (9)"]),
    ],
)
def test_data_that_do_not_suit_are_refused(name: str, shapes: list[tuple[int, ...]], mentions: list[str]) -> None:
    with refused(f"the model {name} takes", "choose another model", *mentions):
        models.factory(name, 3, {}, shapes)


@pytest.mark.parametrize(
    ("name", "options", "mentions"),
    [
        ("har", {"dropout": 2.0}, ["dropout = 2.0"]),
        ("har", {"pool": 0}, ["pool 0"]),
        ("har", {"pool": "two"}, ["pool = 'two'"]),
        ("resnet18", {"width": 3}, ["width = 3", "divisible"]),
        ("resnet18", {"groups": 0}, ["groups = 0"]),
        ("resnet18", {"stem": "medium"}, ["stem 'medium'"]),
        ("image-text", {"text_dim": -1}, ["text_dim = -1"]),
        ("mlp", {"hidden": []}, ["hidden = []", "hidden layer"]),
        ("mlp", {"hidden": [8, -1]}, ["hidden = [8, -1]"]),
    ],
)
def test_options_that_make_no_network_are_refused(name: str, options: dict[str, Any], mentions: list[str]) -> None:
    with refused(*mentions):
        models.factory(name, 3, options, SHAPES[name])()


@pytest.mark.parametrize("name", UNTRAINED)
def test_stages_name_layers_and_the_head_is_the_last_one(name: str) -> None:
    network = models.factory(name, 7, {}, SHAPES[name])()
    assert {"input", "output", "head"} <= network.stages.keys()
    for layers in network.stages.values():
        assert SplitRule(personal=layers).apply(network).personal
    (head,) = network.stages["head"]
    assert head in network.stages["output"]
    setattr(network, head, nn.Identity())
    assert network(*sample(SHAPES[name], 3)).shape[1] != 7


@pytest.mark.parametrize("name", MODELS)
def test_the_first_line_of_a_network_says_what_it_is(name: str) -> None:
    line = (MODELS[name].__doc__ or "").splitlines()[0]
    assert line.endswith(".")
    assert "→" in line


def federation(name: str) -> Federation:
    """Three clients whose inputs are stored in half precision, and targets that can be read off them."""
    torch.manual_seed(0)
    clients = []
    for client in "abc":
        parts = []
        for count in (12, 6):
            inputs = sample(SHAPES[name], count, half=name not in ("digits", "mlp"))
            targets = torch.arange(count) % 3
            for value in inputs:
                if value.is_floating_point():
                    value += (targets - 1).reshape(-1, *[1] * (value.dim() - 1))
            parts.append(Samples(inputs, targets))
        clients.append(ClientData(client, *parts))
    return Federation(clients, name)


@pytest.mark.parametrize("algorithm", ["fedapm", "fedcp"])
@pytest.mark.parametrize("name", [n for n in UNTRAINED if n != "digits"])
def test_methods_train_it(name: str, algorithm: str) -> None:
    data = federation(name)
    make = models.factory(name, data.classes, {"width": 4} if name == "resnet18" else {}, data.shapes)
    options = {"rounds": 2, "fraction": 1.0, "epochs": 2, "lr": 0.05, "batch_size": 6, "seed": 1}
    result = fedapm.train(data, make, algorithm=algorithm, preset="output", **options)
    assert result.history["train_loss"].iloc[-1] < result.history["train_loss"].iloc[0]


def test_the_cnn_for_other_pictures() -> None:
    assert size(CNN(classes=10)) == (3 * 16 * 9 + 16) + (16 * 32 * 9 + 32) + (32 * 8 * 8 * 128 + 128) + (128 * 10 + 10)
    assert size(CNN(classes=2, channels=1, size=28)) == sum(
        [1 * 16 * 9 + 16, 16 * 32 * 9 + 32, 32 * 7 * 7 * 128 + 128, 128 * 2 + 2]
    )
    for side in (4, 27, 30, 64):
        network = CNN(classes=2, **CNN.arguments_for([(3, side, side)]))
        assert network(torch.randn(2, 3, side, side).half()).shape == (2, 2)


def test_the_cnn_for_many_clients_at_once_and_in_steps() -> None:
    targets = torch.tensor([[0, 1], [2, 2], [1, 0]])
    check_many_clients_at_once(lambda: CNN(classes=3, size=8), (noise(3, 2, 3, 8, 8),), targets)
    check_forward_steps(seeded(lambda: CNN(classes=3, size=8)), (noise(2, 3, 8, 8),))
