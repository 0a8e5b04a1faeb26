"""CrisisMMD and RAVDESS as rows of numbers: which rows, of which samples, and what is learnt from whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedapm.data import IID, Source, data_set
from fedapm.data.features.projection import project
from fedapm.data.features.statistics import clip_statistics
from fedapm.data.sets.crisismmd import CLASSES, CrisisMMD, CrisisMMDPooled
from fedapm.data.sets.ravdess import RAVDESS, RAVDESSStatistics
from tests.data.sets.test_crisismmd import archive
from tests.data.sets.test_ravdess import publish, write_frames
from tests.helpers.realdata import unpacked
from tests.helpers.unit import refused


class SmallPooled(CrisisMMDPooled):
    """18 pairs, of which 6 are for the projection."""

    fitted = 6


@pytest.fixture(scope="module")
def crisis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small archive whose features are there."""
    root = archive(tmp_path_factory.mktemp("pooled"))
    SmallPooled().prepare(Source(root))
    return root


def test_a_pair_is_its_picture_and_the_mean_of_its_words(crisis: Path) -> None:
    """Computed by hand from the features of the data set itself, which are the same files."""
    source = Source(crisis, feature_dim=4)
    image, text, _, lengths = CrisisMMD().read(source).inputs
    tokens = zip(text, lengths, strict=True)
    words = [row[:length].float().mean(0) if length else torch.zeros(384) for row, length in tokens]
    order = SmallPooled().order(18, source)
    nobodys, used = order[:6], np.sort(order[6:])
    parts = [project(part[used], part[nobodys], 4) for part in (image.float(), torch.stack(words))]
    pool = SmallPooled().read(source)
    assert 0 in lengths, "a tweet of links alone"
    assert torch.allclose(pool.inputs[0], torch.cat(parts, 1), atol=1e-5)
    assert pool.targets.tolist() == CrisisMMD().labels(source).targets[used].tolist()
    assert pool.modalities == ("image and text",)


def test_fewer_samples_keep_their_disaster_and_inspection_shows_the_same(crisis: Path) -> None:
    source = Source(crisis, feature_dim=4, samples=7)
    pool, labels = SmallPooled().read(source), SmallPooled().labels(source)
    assert len(pool.targets) == 7
    assert pool.targets.tolist() == labels.targets.tolist()
    assert pool.owners is not None
    assert labels.owners is not None
    assert pool.owners.tolist() == labels.owners.tolist() == ["some_event"] * 7
    clients = SmallPooled().federation(source, IID(2), test_fraction=0.5, seed=1)
    positions = SmallPooled().index_federation(source, IID(2), test_fraction=0.5, seed=1)
    assert clients.name == "crisismmd (pooled)"
    assert [c.test.targets.tolist() for c in clients] == [c.test.targets.tolist() for c in positions]


def test_more_components_than_there_can_be_are_refused(crisis: Path) -> None:
    with refused("data.feature_dim = 7", "1280 features of each image", "6 samples"):
        SmallPooled().read(Source(crisis, feature_dim=7))


def test_clips_as_statistics(tmp_path: Path) -> None:
    write_frames(tmp_path)
    whole = RAVDESS(audio_features="logmel").read(Source(tmp_path))
    pool = RAVDESSStatistics().read(Source(tmp_path))
    assert torch.equal(pool.inputs[0], torch.from_numpy(clip_statistics(*(part.numpy() for part in whole.inputs))))
    assert pool.inputs[0].shape == (3, 192)
    assert RAVDESSStatistics().full_name == "ravdess (statistics)"
    assert pool.targets.tolist() == whole.targets.tolist()


def test_statistics_of_published_clips_are_asked_for_with_their_command(tmp_path: Path) -> None:
    publish(tmp_path)
    with refused("fedapm data prepare ravdess", "--set data.features=statistics"):
        RAVDESSStatistics().read(Source(tmp_path))
    RAVDESSStatistics().prepare(Source(tmp_path))
    assert RAVDESSStatistics().read(Source(tmp_path)).inputs[0].shape == (6, 240), "80 bands"


@pytest.mark.real_data
def test_real_voices_are_told_apart_by_their_statistics(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Standardized to about one, and the nearest other clip of the same actor has the same emotion far too often."""
    pool = data_set("ravdess", "statistics").read(Source(unpacked("ravdess", tmp_path_factory)))
    rows = pool.inputs[0]
    assert len(rows) == 1440
    assert rows.mean().abs() < 0.5
    assert 0.5 < rows.std() < 2
    own = pool.owners == pool.owners[0]
    distances = torch.cdist(rows[own], rows[own]).fill_diagonal_(torch.inf)
    targets = pool.targets[torch.as_tensor(own)]
    assert (targets[distances.argmin(1)] == targets).float().mean() > 2 / 8


def test_pooled_is_a_version_of_crisismmd() -> None:
    assert isinstance(data_set("crisismmd", "pooled"), CrisisMMDPooled)
    assert len(CLASSES) == 8
