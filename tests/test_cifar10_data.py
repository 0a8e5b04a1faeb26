"""CIFAR-10 itself, where its files are at hand: all pictures, balanced, standardised, and trainable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from torch import Tensor

import fedapm
from fedapm import IID, Federation
from fedapm.data import cifar10
from fedapm.models import CNN

pytestmark = pytest.mark.real_data


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the published binary files."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    source = Path(os.environ.get("FEDAPM_DATA", beside))
    if (source / cifar10.FOLDER).is_dir():
        return source
    if not (source / "read.py").is_file():
        pytest.skip(f"no CIFAR-10 here: {source} has neither {cifar10.FOLDER} nor read.py (set FEDAPM_DATA)")
    # workers of one session have folders side by side; whoever comes first unpacks for all
    together = (
        tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else tmp_path_factory.getbasetemp()
    )
    folder, done = together / "cifar10", together / "cifar10-is-here"
    with FileLock(together / "cifar10.lock"):
        if not done.exists():
            subprocess.run([sys.executable, source / "read.py", "cifar10", folder], check=True)
            done.touch()
    return folder


@pytest.fixture(scope="module")
def pictures(root: Path) -> tuple[Tensor, Tensor]:
    return cifar10.read(root)


def test_all_sixty_thousand_pictures_are_there(pictures: tuple[Tensor, Tensor]) -> None:
    x, y = pictures
    assert x.shape == (60_000, 3, 32, 32)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert torch.bincount(y).tolist() == [6000] * 10


def test_the_order_is_the_published_one(pictures: tuple[Tensor, Tensor]) -> None:
    assert pictures[1][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], "frog, truck, truck, deer, …"
    assert pictures[1][50_000:50_005].tolist() == [3, 8, 8, 0, 6], "the test batch: cat, ship, ship, airplane, frog"


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
