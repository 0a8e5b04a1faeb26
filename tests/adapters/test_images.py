"""Adapters in networks for images: a ViT in a folder, and EfficientNet's convolutions."""

from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

import fedapm
from fedapm.adapters import LoraSettings, adapted
from fedapm.core.kept import KEPT
from fedapm.core.pretrained import quiet_libraries
from fedapm.data import Federation
from fedapm.errors import FedapmError
from fedapm.models import ImageClassifier
from tests.adapters.tiny import tiny_folder

SOLVER = {"optimizer": "adamw", "lr": 0.01, "epochs": 1, "batch_size": 4, "engine": "sequential"}


@lru_cache(maxsize=1)
def tiny_vit() -> Path:
    """Weights of two layers of a ViT for images of 8 by 8 pixels, as its library saves them."""
    from transformers import ViTConfig, ViTModel

    folder = Path(mkdtemp())
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(0)
        how = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        ViTModel(ViTConfig(image_size=8, patch_size=4, **how)).save_pretrained(folder)
    return folder


def vit() -> ImageClassifier:
    return ImageClassifier(2, weights=str(tiny_vit()))


def lite0() -> ImageClassifier:
    return ImageClassifier(2, size=32)


@lru_cache(maxsize=1)
def pictures() -> Federation:
    stream = torch.Generator().manual_seed(1)
    data = {}
    for client in range(2):
        x = torch.randn(8, 3, 16, 16, generator=stream)
        data[f"client-{client}"] = (x, (x.mean((1, 2, 3)) > 0).long())
    return Federation.from_clients(data, test=data)


def test_a_vit_computes_what_its_library_does():
    from transformers import ViTModel

    with quiet_libraries():
        whole = ViTModel.from_pretrained(tiny_vit(), add_pooling_layer=False).eval()
    network = ImageClassifier(2, weights=str(tiny_vit()), mean=(0.5,) * 3, std=(0.5,) * 3).eval()
    images = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        expected = network.head(whole(images).last_hidden_state[:, 0])
        torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-5)


def test_efficientnet_computes_what_its_encoder_does():
    """Pixels that were standardized as CIFAR-10's come out as the package's network wants them."""
    from fedapm.core.pretrained import load_efficientnet_lite0

    pixels = torch.randint(0, 256, (2, 3, 32, 32)).float()
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
    network, whole = lite0().eval(), load_efficientnet_lite0("a test").eval()
    with torch.no_grad():
        expected = network.head(whole.extract_features((pixels - 127) / 128).mean((2, 3)))
        torch.testing.assert_close(network((pixels / 255 - mean) / std), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "lora", "below"),
    [
        (vit, {"rank": 2, "layers": [-2]}, (5, 8)),
        (lite0, {"rank": 2, "layers": [-2]}, (192, 1, 1)),
    ],
)
def test_adapters_in_the_last_layers_are_trained_and_the_rest_is_computed_once(make, lora, below, tmp_path):
    clients, used = pictures(), KEPT.used
    result = fedapm.train(clients, make, lora=lora, rounds=1, out=tmp_path / "run", **SOLVER)
    problem = result.engine.problem
    net = problem.network(0)
    samples = problem.samples(0, "train")
    assert net.kept(samples).samples.inputs[0].shape == (8, *below)
    assert KEPT.used > used
    assert net.split.shared
    assert all("lora_A" in n for n in net.split.shared)
    assert result.history["bytes_up"].iloc[-1] < sum(p.numel() for p in net.module.parameters())
    statistics = dict(make().named_buffers())
    assert all(torch.equal(t, statistics[n]) for n, t in net.module.named_buffers() if n in statistics), "none moved"
    again = fedapm.load(tmp_path / "run", model=make)
    inputs = clients[1].test.inputs
    assert torch.equal(again.predict("client-1", inputs), result.predict("client-1", inputs))
    merged = make().eval()
    merged.load_state_dict(adapted_state(result))
    with torch.no_grad():
        torch.testing.assert_close(merged(*inputs), result.predict("client-1", inputs), rtol=1e-3, atol=1e-3)


def adapted_state(result: fedapm.Result) -> dict[str, torch.Tensor]:
    return result.model("client-1").merged()


def test_what_is_no_vit_is_refused_in_one_line():
    with pytest.raises(FedapmError, match="bert"):
        ImageClassifier(2, weights=str(tiny_folder()))


def test_a_layer_without_room_for_adapters_is_refused_in_one_line():
    settings = LoraSettings(rank=2, targets=("encoder.0.conv",))
    with pytest.raises(FedapmError, match="peft has no adapters for"):
        adapted(lite0(), settings)
