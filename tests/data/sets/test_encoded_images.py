"""CIFAR-10 through an encoder: only pictures that are used are encoded, once, and the projection is nobody's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedapm.data import DATA_SETS, IID, Pool, Source, data_set
from fedapm.data.features.images import EfficientNetLite0, SmallImageEncoder
from fedapm.data.features.projection import project
from fedapm.data.sets.cifar10 import CIFAR10Features
from fedapm.errors import FedapmError
from fedapm.experiments import build
from tests.data.sets.test_cifar_layouts import Small10, rows, write_binary
from tests.helpers.realdata import unpacked
from tests.helpers.unit import refused


class Means(SmallImageEncoder):
    """Sums over parts of a picture in place of a network; it remembers what it was asked."""

    seen: ClassVar[list[Tensor]] = []
    width = 24
    settings: ClassVar[dict[str, Any]] = {"encoder": "means", "version": 1}

    def load(self, fetch: bool) -> nn.Module:
        del fetch
        return nn.Identity()

    def features(self, batch: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(batch, (4, 2)).flatten(1)

    def __call__(self, images: Sequence[Any]) -> Tensor:
        self.seen.extend(torch.from_numpy(np.array(image)) for image in images)
        return super().__call__(images)


class SmallFeatures(CIFAR10Features):
    """72 pictures, of which 20 are for the projection."""

    files = Small10.files
    encoder = Means
    fitted = 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Means.seen.clear()
    write_binary(Small10(), tmp_path)
    return tmp_path


def source(root: Path, samples: int | None = None, dim: int | None = 3) -> Source:
    return Source(root, samples=samples, feature_dim=dim)


def read(root: Path, samples: int | None = None) -> Pool:
    SmallFeatures().prepare(source(root, samples))
    return SmallFeatures().read(source(root, samples))


def test_features_take_the_place_of_pictures(root: Path) -> None:
    pool = read(root)
    assert pool.inputs[0].shape == (52, 3)
    assert pool.inputs[0].dtype == torch.float32
    assert len(Means.seen) == 72


def test_every_sample_keeps_its_class(root: Path) -> None:
    """Computed by hand from all pictures: features and classes side by side."""
    pixels, classes = (np.concatenate(part) for part in zip(*(rows(Small10(), k) for k in range(6)), strict=True))
    pictures = torch.from_numpy(pixels).view(-1, 3, 32, 32).permute(0, 2, 3, 1)
    pool = read(root, 30)
    used = {picture.numpy().tobytes() for picture in Means.seen}
    places = [k for k, picture in enumerate(pictures) if picture.contiguous().numpy().tobytes() in used]
    fitted = {picture.numpy().tobytes() for picture in Means.seen[:20]}
    own = [k for k in places if pictures[k].contiguous().numpy().tobytes() not in fitted]
    assert len(places) == 50
    assert pool.targets.tolist() == classes[own].tolist(), "in the published order"
    encoded = Means()(pictures.numpy())
    expected = project(encoded[own], encoded[[k for k in places if k not in own]], 3)
    assert torch.allclose(pool.inputs[0], expected, atol=2e-4)


def test_only_what_is_used_is_encoded_and_more_continues_where_less_ended(root: Path) -> None:
    read(root, 10)
    assert len(Means.seen) == 30
    few = SmallFeatures().read(source(root, 10))
    Means.seen.clear()
    many = read(root, 40)
    assert len(Means.seen) == 60, "one shard of this size; whole shards are kept"
    rows_of = {tuple(row) for row in many.inputs[0].tolist()}
    assert {tuple(row) for row in few.inputs[0].tolist()} <= rows_of
    Means.seen.clear()
    again = read(root, 10)
    assert Means.seen == []
    assert torch.equal(again.inputs[0], few.inputs[0])
    assert len(SmallFeatures().read(source(root, 40)).targets) == 40, "preparing less leaves more where it is"


def test_labels_are_those_of_the_samples_and_need_no_features(root: Path) -> None:
    labels = SmallFeatures().labels(source(root, 30))
    assert Means.seen == []
    assert torch.equal(labels.targets, read(root, 30).targets)


def test_inspection_and_run_have_the_same_clients(root: Path) -> None:
    read(root, 30)
    arguments = {"test_fraction": 0.5, "seed": 4}
    clients = SmallFeatures().federation(source(root, 30), IID(3), **arguments)
    positions = SmallFeatures().index_federation(source(root, 30), IID(3), **arguments)
    assert clients.name == "cifar10 (efficientnet-lite0)"
    for a, b in zip(clients.clients, positions.clients, strict=True):
        assert torch.equal(a.train.targets, b.train.targets)
        assert torch.equal(a.test.targets, b.test.targets)
    assert sum(len(c.train) + len(c.test) for c in clients.clients) == 30


def test_pictures_that_were_never_encoded_are_asked_for_with_the_command(root: Path) -> None:
    with refused("fedapm data prepare cifar10", "--set data.features=efficientnet-lite0", "--set data.samples=30"):
        SmallFeatures().read(source(root, 30))


def test_a_picture_that_changed_is_noticed(root: Path) -> None:
    read(root)
    path = root / Small10.binary.folder / "data_batch_2.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 255
    path.write_bytes(content)
    with refused("out of date", "has changed"):
        SmallFeatures().read(source(root))


@pytest.mark.parametrize("dim", [21, 25, 2000])
def test_too_many_components_are_refused(root: Path, dim: int) -> None:
    with refused(f"data.feature_dim = {dim}", "24 features of each image", "20 samples"):
        SmallFeatures().read(source(root, dim=dim))


def test_small_pictures_are_seen_whole() -> None:
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[0] = 255
    seen = Means().view(picture)
    assert seen.shape == (96, 96, 3)
    assert seen[0].min() > 200
    assert SmallImageEncoder.settings != EfficientNetLite0.settings


@pytest.mark.parametrize(
    ("name", "features", "mentions"),
    [
        ("cifar10", "efficientnet", ["did you mean", "efficientnet-lite0"]),
        ("motionsense", "efficientnet-lite0", ["motionsense has no such features", "statistics"]),
        ("digits", "statistics", ["digits has no such features", "none to choose from"]),
    ],
)
def test_features_that_a_data_set_does_not_have_are_refused(name: str, features: str, mentions: list[str]) -> None:
    for look_up in (
        lambda: data_set(name, features),
        lambda: build.resolve({"data": {"name": name, "features": features}}),
    ):
        with refused(f"data.features = {features!r}", *mentions):
            look_up()


@pytest.mark.parametrize("name", [name for name, kind in DATA_SETS.items() if kind.feature_versions()])
def test_every_version_has_a_name_and_defaults_that_hold(name: str) -> None:
    for version in DATA_SETS[name].feature_versions():
        assert version.name == name
        assert version.features_name
        found = build.resolve({"data": {"name": name, "features": version.features_name}})
        for table, values in version.defaults.items():
            assert values.items() <= found.tables()[table].items()
        assert found.model.name == "mlp"
        other = build.resolve({"data": found.tables()["data"], "model": {"name": "digits"}})
        assert (other.model.preset, other.model.options) == (None, {})


@pytest.mark.real_data
def test_real_pictures_of_a_class_lie_together(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """160 pictures: the nearest other one is of the same class far more often than chance has it."""

    class Few(CIFAR10Features):
        fitted = 60

    here = Source(unpacked("cifar10", tmp_path_factory), samples=100, feature_dim=16, cache=tmp_path)
    try:
        Few().prepare(here)
    except FedapmError as error:
        pytest.skip(str(error))
    pool = Few().read(here)
    distances = torch.cdist(pool.inputs[0], pool.inputs[0]).fill_diagonal_(torch.inf)
    same = pool.targets[distances.argmin(1)] == pool.targets
    assert same.float().mean() > 0.4
