"""CIFAR-10 itself, where its files are at hand: all pictures, balanced, standardised, and trainable."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fedapm
from fedapm import IID, Federation
from fedapm.data.dataset import Source
from fedapm.data.sets.cifar10 import CIFAR10
from fedapm.models import CNN
from tests.helpers.realdata import unpacked

pytestmark = pytest.mark.real_data


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the published binary files."""
    return unpacked("cifar10", tmp_path_factory)


@pytest.fixture(scope="module")
def pictures(root: Path) -> tuple[Tensor, Tensor]:
    pool = CIFAR10().read(Source(root))
    return pool.inputs[0], pool.targets


def test_all_sixty_thousand_pictures_are_there(pictures: tuple[Tensor, Tensor]) -> None:
    x, y = pictures
    assert x.shape == (60_000, 3, 32, 32)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert torch.bincount(y).tolist() == [6000] * 10


def test_the_order_is_the_published_one(pictures: tuple[Tensor, Tensor]) -> None:
    assert pictures[1][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], "frog, truck, truck, deer, …"
    assert pictures[1][50_000:50_005].tolist() == [3, 8, 8, 0, 6], "the test batch: cat, ship, ship, airplane, frog"


def test_labels_come_without_the_pictures(root: Path, pictures: tuple[Tensor, Tensor]) -> None:
    labels = CIFAR10().labels(Source(root))
    assert torch.equal(labels.targets, pictures[1])
    assert [labels.classes[k] for k in labels.targets[:4]] == ["frog", "truck", "truck", "deer"]


@pytest.mark.slow
def test_the_python_version_of_the_same_pictures_reads_the_same(
    root: Path, pictures: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for path in (root / "cifar-10-batches-bin").glob("*.bin"):
        rows = np.fromfile(path, np.uint8).reshape(10_000, 3073)
        content = {"labels": rows[:, 0].tolist(), "data": np.ascontiguousarray(rows[:, 1:])}
        (folder / path.stem).write_bytes(pickle.dumps(content, protocol=2))
    found = CIFAR10().read(Source(tmp_path))
    assert torch.equal(found.targets, pictures[1])
    assert torch.equal(found.inputs[0], pictures[0])


def test_channels_are_standardised(pictures: tuple[Tensor, Tensor]) -> None:
    mean, std = pictures[0].mean((0, 2, 3)), pictures[0].std((0, 2, 3))
    assert mean.abs().max() < 0.02
    assert (std - 1).abs().max() < 0.02


def test_the_cnn_trains_a_round_on_real_pictures(pictures: tuple[Tensor, Tensor]) -> None:
    x, y = pictures[0][:400], pictures[1][:400]
    federation = Federation.from_arrays(x, y, IID(4))
    result = fedapm.train(federation, CNN, preset="output", rounds=1, fraction=1.0, lr=0.05, epochs=1, seed=1)
    assert result.history["train_loss"].iloc[-1] < result.history["train_loss"].iloc[0]
    assert result.model(0)(x[:5]).shape == (5, 10)
