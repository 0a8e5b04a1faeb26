"""Convolutions in oneDNN's own order: the numbers of the plain way, and the plain way wherever it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapm.core.first_order import first_order, first_order_is_enough
from fedapm.core.network import Network
from fedapm.core.samples import Samples
from fedapm.core.solver import Epochs, SGDConfig
from fedapm.core.split import SplitRule
from fedapm.core.task import LocalTask
from fedapm.core.vec import Vec
from fedapm.models import CNN, pooled

Layers = tuple[nn.Module, ...]

pytestmark = pytest.mark.skipif(not pooled.has_onednn(), reason="this processor computes in the plain way")


def layers(channels: int = 3, **more: str) -> Layers:
    torch.manual_seed(1)
    return nn.Conv2d(channels, 16, 3, padding=1, **more), nn.Conv2d(16, 32, 3, padding=1)


def pictures(count: int = 20, channels: int = 3, size: int = 16) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def naive(images: Tensor, convolutions: Layers) -> Tensor:
    for convolution in convolutions:
        images = functional.relu(functional.max_pool2d(convolution(images), 2))
    return images


@pytest.fixture(autouse=True)
def every_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are large enough, unless this is what a test is about."""
    if "few" not in request.node.name:
        monkeypatch.setattr(pooled, "ENOUGH", 1)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The batches that went through oneDNN's own order."""
    found: list[int] = []
    original = pooled._pooled_opaque

    def noted(images: Tensor, convolutions: Layers) -> Tensor:
        found.append(len(images))
        return original(images, convolutions)

    monkeypatch.setattr(pooled, "_pooled_opaque", noted)
    return found


def gradients(output: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    slope = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    return list(torch.autograd.grad((output * slope).sum(), wanted))


def close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-5 * other.abs().max())


@pytest.mark.parametrize(
    ("count", "channels", "size"), [(50, 3, 32), (20, 1, 28), (7, 2, 9), (1, 1, 4), (3, 3, 33), (2, 4, 5)]
)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("alike", [False, True], ids=["noise", "ties"])
def test_values_and_gradients_are_those_of_the_naive_way(taken, count, channels, size, order, alike) -> None:
    images = pictures(count, channels, size)
    # where a window has its largest value several times, the first of them gets the gradient
    images = ((images > 1.3).float() if alike else images).contiguous(memory_format=order).requires_grad_()
    convolutions = layers(channels)
    wanted = [images, *(p for layer in convolutions for p in layer.parameters())]
    with first_order():
        found = pooled.pooled(images, convolutions)
    assert taken == [count]
    expected = naive(images, convolutions)
    assert close(found, expected)
    for one, other in zip(gradients(found, wanted), gradients(expected, wanted), strict=True):
        assert one.stride() == other.stride() or one.shape == other.shape
        assert close(one, other)


@pytest.mark.parametrize("block", [nullcontext, torch.no_grad, torch.inference_mode])
def test_a_part_of_larger_pictures_without_gradients(taken, block) -> None:
    whole, convolutions = pictures(6, 3, 20), layers()
    with first_order(), block():
        found = pooled.pooled(whole[::2, :, 2:14, 3:15], convolutions)
    assert taken == [3]
    assert close(found, naive(whole[::2, :, 2:14, 3:15], convolutions))


def test_layers_that_are_not_trained_get_no_gradient(taken) -> None:
    first, second = layers()
    first.requires_grad_(False)
    with first_order():
        found = pooled.pooled(pictures(), (first, second))
    assert taken
    expected = gradients(naive(pictures(), (first, second)), list(second.parameters()))
    for one, other in zip(gradients(found, list(second.parameters())), expected, strict=True):
        assert close(one, other)


class Own(nn.Conv2d):
    """A convolution of somebody's own."""


def swapped(convolutions: Layers) -> Layers:
    own = Own(3, 16, 3, padding=1)
    own.load_state_dict(convolutions[0].state_dict())
    return own, convolutions[1]


def hooked(register: str) -> Callable[[Layers], Layers]:
    def hook(convolutions: Layers) -> Layers:
        getattr(convolutions[1], register)(lambda *_: None)
        return convolutions

    return hook


@pytest.mark.parametrize(
    "change",
    [
        swapped,
        hooked("register_forward_hook"),
        hooked("register_forward_pre_hook"),
        hooked("register_full_backward_hook"),
        hooked("register_full_backward_pre_hook"),
        lambda convolutions: (nn.utils.parametrizations.weight_norm(convolutions[0]), convolutions[1]),
        lambda convolutions: (layers(padding_mode="circular")[0], convolutions[1]),
        lambda convolutions: (nn.Sequential(convolutions[0]), convolutions[1]),
    ],
    ids=["own", "hook", "pre-hook", "backward-hook", "backward-pre-hook", "parametrized", "circular", "wrapped"],
)
def test_layers_that_are_more_than_torchs_are_called_as_ever(taken, change) -> None:
    convolutions = change(layers())
    with first_order():
        assert close(pooled.pooled(pictures(), convolutions), naive(pictures(), convolutions))
    assert not taken


def test_hooks_on_every_module_are_called_as_ever(taken) -> None:
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    with first_order():
        pooled.pooled(pictures(), layers())
    handle.remove()
    assert not taken


def test_few_pixels_are_not_worth_it(taken) -> None:
    with first_order():
        for count in (15, 16):
            assert close(pooled.pooled(pictures(count), layers()), naive(pictures(count), layers()))
    assert taken == [16]


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [(torch.backends.mkldnn, "is_available", False), (torch.backends.cpu, "get_cpu_capability", "DEFAULT")],
)
def test_where_torch_has_no_onednn_or_another_processor(monkeypatch, taken, where, name, value) -> None:
    monkeypatch.setattr(where, name, lambda: value)
    with first_order():
        assert close(pooled.pooled(pictures(), layers()), naive(pictures(), layers()))
    assert not taken


def test_nothing_but_single_precision_on_a_processor(taken) -> None:
    double = tuple(layer.double() for layer in layers())
    with first_order():
        assert pooled.pooled(pictures().double(), double).dtype == torch.float64
        with torch.autocast("cpu", torch.bfloat16):
            assert pooled.pooled(pictures(), layers()).dtype == torch.bfloat16
        assert pooled.pooled(pictures(2)[0], layers()).dim() == 3
        meta = tuple(layer.to("meta") for layer in layers())
        assert pooled.pooled(pictures().to("meta"), meta).shape == (20, 32, 4, 4)
    assert not taken


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("where", ["pictures", "weight", "bias"])
def test_what_is_not_a_number_comes_back_as_in_the_plain_way(taken, value, where) -> None:
    images, convolutions = pictures(), layers()
    place = images if where == "pictures" else getattr(convolutions[1], where)
    with torch.no_grad():
        place.view(-1)[5] = value
    with first_order():
        found = pooled.pooled(images, convolutions)
    assert not taken
    torch.testing.assert_close(found, naive(images, convolutions), equal_nan=True)


def test_second_derivatives_and_many_clients_at_once_are_possible_elsewhere(taken) -> None:
    convolutions = layers()
    weight = convolutions[0].weight
    (slope,) = torch.autograd.grad(pooled.pooled(pictures(), convolutions).square().sum(), weight, create_graph=True)
    torch.autograd.grad(slope.square().sum(), weight)
    several = torch.vmap(lambda images: pooled.pooled(images, convolutions))(pictures(6).view(2, 3, 3, 16, 16))
    assert close(several.flatten(0, 1), naive(pictures(6), convolutions))
    assert not taken


def test_it_is_enough_for_as_long_as_the_block_lasts() -> None:
    assert not first_order_is_enough()
    with first_order():
        with pytest.raises(TypeError), first_order():
            len(0)  # type: ignore[arg-type]
        assert first_order_is_enough()
    assert not first_order_is_enough()


def data(count: int = 40) -> Samples:
    return Samples((pictures(count, 3, 12),), torch.arange(count) % 10)


def trained(preset: str | None = None, block: str = "shared", **settings: object) -> tuple[Vec, float | None]:
    torch.manual_seed(0)
    network = CNN(size=12)
    made = Network(network, SplitRule(preset=preset).apply(network), functional.cross_entropy)
    task = LocalTask(made, data(), SGDConfig(lr=0.05, batch_size=16, **settings), 0, 0, 1)  # type: ignore[arg-type]
    found = task.minimize(made.read(getattr(made.split, block)), stop=Epochs(2))
    return found, task.log[-1].loss


@pytest.mark.parametrize(
    ("preset", "block", "settings"),
    [
        (None, "shared", {}),
        ("output", "shared", {"momentum": 0.5}),
        ("output", "personal", {}),
        ("input", "shared", {"clip_norm": 0.1}),
        ("input", "personal", {"accumulate": 2}),
        (None, "shared", {"optimizer": "adamw"}),
    ],
)
def test_training_is_training(monkeypatch, taken, preset, block, settings) -> None:
    found, loss = trained(preset, block, **settings)
    assert taken
    monkeypatch.setattr(pooled, "_opaque", lambda *_: False)
    expected, expected_loss = trained(preset, block, **settings)
    # a step of AdamW is as long for a gradient that is next to nothing
    most = 1e-3 if settings else 1e-5
    assert max(float((found[n] - expected[n]).abs().max()) for n in found) < most
    assert loss == pytest.approx(expected_loss, rel=1e-4)


def test_dropout_in_front_of_convolutions_is_seen(taken) -> None:
    trained("input", "personal", dropout_v=0.5)
    assert not taken


def test_a_network_that_has_diverged_says_so() -> None:
    network = CNN(size=12)
    made = Network(network, SplitRule().apply(network), functional.cross_entropy)
    with torch.no_grad():
        network.conv1.weight.fill_(torch.nan)
    assert made.predict(data()).isnan().all()
