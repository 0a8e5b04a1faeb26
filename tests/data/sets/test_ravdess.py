"""RAVDESS from its published clips and from a file of frames, and the real recordings where they are at hand."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedapm
from fedapm.data.dataset import Pool, Source
from fedapm.data.features import audio
from fedapm.data.partition import Natural
from fedapm.data.sets.ravdess import EMOTIONS, RAVDESS
from fedapm.models.mm_action import MMActionClassifier
from tests.data.features.test_audio import speech, write_wav
from tests.helpers.realdata import unpacked
from tests.helpers.unit import refused


def publish(root: Path, actors: int = 2, each: int = 3) -> list[Path]:
    """Some clips in the published layout: 48 kHz, each actor's last one in stereo."""
    made = []
    for actor in range(1, actors + 1):
        for k in range(each):
            name = f"03-01-{k % 8 + 1:02d}-01-01-{k // 8 + 1:02d}-{actor:02d}.wav"
            signal = speech(0.3 + 0.1 * k, rate=48_000, seed=10 * actor + k)
            path = root / f"Actor_{actor:02d}" / name
            made.append(write_wav(path, signal, 48_000, channels=1 + (k == each - 1)))
    return made


def frames(**changed: Any) -> dict[str, Any]:
    """A small file of frames: three clips, the second longer than what is kept."""
    stream = np.random.default_rng(0)
    content = {
        "logmel": stream.normal(-11, 5, size=(5 + 700 + 9, 64)).astype(np.float32),
        "offsets": np.array([0, 5, 705, 714]),
        "actor": np.array([1, 1, 12], np.int8),
        "emotion": np.array([0, 7, 4], np.int8),
        "emotions": np.array(EMOTIONS),
    }
    return {name: values for name, values in {**content, **changed}.items() if values is not None}


def write_frames(root: Path, **changed: Any) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    np.savez(root / "ravdess.npz", **frames(**changed))
    return root / "ravdess.npz"


def read(root: Path) -> Pool:
    return RAVDESS().read(Source(root))


@pytest.mark.parametrize("inside", [".", "ravdess", "RAVDESS", "Audio_Speech_Actors_01-24"])
def test_published_clips_are_prepared_and_read(tmp_path: Path, inside: str) -> None:
    paths = publish(tmp_path / inside)
    reports: list[tuple[str, int, int]] = []
    source = Source(tmp_path, progress=lambda *report: reports.append(report))
    home = RAVDESS().prepare(source)
    assert home is not None
    assert home.is_relative_to(tmp_path / "fedapm-features" / "ravdess")
    assert reports[-1][1:] == (6, 6)
    pool = RAVDESS().read(source)
    assert pool.modalities == ("audio",)
    assert pool.classes == EMOTIONS
    assert pool.targets.tolist() == [0, 0, 1, 1, 2, 2], "by file name: the emotion comes before the actor"
    assert pool.owners is not None
    assert pool.owners.tolist() == ["01", "02"] * 3
    values, lengths = pool.inputs
    assert values.shape == (6, 51, 80)
    assert values.dtype == torch.float16
    assert lengths.tolist() == [31, 31, 41, 41, 51, 51]
    for k, path in enumerate(sorted(paths, key=lambda path: path.name)):
        expected = torch.from_numpy(audio.features(path)).half()
        assert torch.equal(values[k, : lengths[k]], expected)
        assert not values[k, lengths[k] :].any()


def test_log_mel_instead_of_mfcc_is_kept_apart(tmp_path: Path) -> None:
    paths = publish(tmp_path, actors=1, each=2)
    RAVDESS().prepare(Source(tmp_path))
    with refused("fedapm data prepare ravdess"):
        RAVDESS("logmel").read(Source(tmp_path))
    RAVDESS("logmel").prepare(Source(tmp_path))
    values, lengths = RAVDESS("logmel").read(Source(tmp_path)).inputs
    assert torch.equal(values[0, : lengths[0]], torch.from_numpy(audio.features(paths[0], "logmel")).half())


def test_clips_that_were_not_prepared_or_changed_since_say_what_to_run(tmp_path: Path) -> None:
    paths = publish(tmp_path, actors=1, each=2)
    with refused("fedapm data prepare ravdess"):
        read(tmp_path)
    RAVDESS().prepare(Source(tmp_path))
    read(tmp_path)
    write_wav(paths[0], speech(0.4, 48_000), 48_000)
    with refused(paths[0].name, "fedapm data prepare ravdess"):
        read(tmp_path)


def test_labels_are_had_without_a_sound(tmp_path: Path) -> None:
    for path in publish(tmp_path):
        path.write_bytes(b"no sound")
    labels = RAVDESS().labels(Source(tmp_path))
    assert labels.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert labels.owners is not None
    assert labels.owners.tolist() == ["01", "02"] * 3


def test_songs_films_and_stray_files_are_passed_over(tmp_path: Path) -> None:
    paths = publish(tmp_path, actors=1, each=2)
    folder = paths[0].parent
    for name in ("03-02-01-01-01-01-01.wav", "01-01-01-01-01-01-01.mp4", "._03-01-01-01-01-01-01.wav", "notes.txt"):
        (folder / name).write_bytes(b"x")
    assert len(RAVDESS().labels(Source(tmp_path)).targets) == 2


@pytest.mark.parametrize("name", ["mine.wav", "03-01-09-01-01-01-01.wav", "03-01-00-01-01-01-01.wav", "03-01-01.wav"])
def test_a_clip_with_another_name_is_refused(tmp_path: Path, name: str) -> None:
    (path := publish(tmp_path)[0].with_name(name)).write_bytes(b"x")
    with refused(str(path), "named"):
        RAVDESS().labels(Source(tmp_path))


def test_a_clip_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = publish(tmp_path)[0]
    write_wav(tmp_path / "Actor_09" / path.name, speech(0.3))
    with refused(path.name, "duplicate"):
        RAVDESS().labels(Source(tmp_path))


@pytest.mark.parametrize(
    ("content", "mention"),
    [(b"", "empty"), (b"RIFF\x00", "cannot be read"), (b"version https://git-lfs.github.com/", "lfs")],
)
def test_a_broken_clip_is_named(tmp_path: Path, content: bytes, mention: str) -> None:
    path = publish(tmp_path)[2]
    path.write_bytes(content)
    with refused(str(path), mention):
        RAVDESS().prepare(Source(tmp_path))


def test_nothing_there_is_said_with_what_to_fetch(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "gone"):
        with refused(str(root), "ravdess.npz", "fedapm data get ravdess"):
            read(root)
    (tmp_path / "Actor_01").mkdir()
    with refused(str(tmp_path), "speech"):
        read(tmp_path)
    with refused("ravdess", "--data-root"):
        RAVDESS().read(Source())


@pytest.mark.parametrize("inside", [".", "ravdess"])
def test_a_file_of_frames_needs_no_preparation(tmp_path: Path, inside: str) -> None:
    write_frames(tmp_path / inside)
    assert RAVDESS().prepare(Source(tmp_path)) is None
    pool = read(tmp_path)
    assert pool.targets.tolist() == [0, 7, 4]
    assert pool.classes == EMOTIONS
    assert pool.owners is not None
    assert pool.owners.tolist() == ["01", "01", "12"]
    values, lengths = pool.inputs
    assert lengths.tolist() == [5, 600, 9]
    assert values.shape == (3, 600, 64)
    assert values.dtype == torch.float16
    last = frames()["logmel"][705:]
    assert np.allclose(values[2, :9], (last - last.mean()) / last.std(), atol=2e-3)
    assert not values[2, 9:].any()


def test_frames_that_do_not_vary_become_zero(tmp_path: Path) -> None:
    write_frames(tmp_path, logmel=np.full((714, 64), -18.420681, np.float32))
    assert not read(tmp_path).inputs[0].any()


def test_the_published_clips_win_over_the_file(tmp_path: Path) -> None:
    write_frames(tmp_path)
    publish(tmp_path / "ravdess", actors=1, each=2)
    assert len(RAVDESS().labels(Source(tmp_path)).targets) == 2
    assert RAVDESS().prepare(Source(tmp_path)) is not None
    assert read(tmp_path).inputs[0].shape[2] == 80


def test_labels_of_the_file_do_not_need_its_frames(tmp_path: Path) -> None:
    write_frames(tmp_path, logmel=None)
    assert RAVDESS().labels(Source(tmp_path)).targets.tolist() == [0, 7, 4]
    with refused("ravdess.npz", "logmel"):
        read(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, share: float) -> None:
    path = write_frames(tmp_path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with refused(str(path), "damaged"):
        read(tmp_path)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ravdess.npz"
    path.write_text("Not found.")
    with refused(str(path), "damaged"):
        read(tmp_path)
    path.write_bytes(pickle.dumps({"logmel": [1.0]}))
    with refused(str(path), "damaged"):
        read(tmp_path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with refused(str(path), "not a NumPy file"):
        read(tmp_path)


def test_flipped_bytes_are_noticed(tmp_path: Path) -> None:
    path = write_frames(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with refused(str(path), "damaged"):
        read(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"offsets": np.array([0, 5, 705])},
        {"offsets": np.array([0, 5, 5, 714])},
        {"offsets": np.array([0, 705, 5, 714])},
        {"offsets": np.array([1, 5, 705, 714])},
        {"offsets": np.array([0.0, 5.0, 705.0, 714.0])},
        {"offsets": np.array([0])},
        {"offsets": np.array(3)},
        {"offsets": np.array([0, 5, 705, 715])},
        {"offsets": np.array([0, 5, 705, 2**62])},
        {"actor": np.array([1, 2])},
        {"actor": np.array(["a", "b", "c"])},
        {"emotion": np.array([0, 8, 1])},
        {"emotion": np.array([0, -1, 1])},
        {"emotions": np.array([1, 2, 3])},
        {"emotions": np.array(EMOTIONS, dtype=object)},
        {"logmel": np.zeros((714, 64), np.int16)},
        {"logmel": np.zeros(714, np.float32)},
        {"logmel": np.full((714, 64), np.nan, np.float32)},
        {"actor": None},
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_file(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = write_frames(tmp_path, **changed)
    with refused(str(path)):
        read(tmp_path)


def test_every_actor_is_a_client(tmp_path: Path) -> None:
    publish(tmp_path, actors=3, each=8)
    RAVDESS().prepare(Source(tmp_path))
    federation = RAVDESS().federation(Source(tmp_path), Natural(minimum=8), test_fraction=0.25, seed=0)
    assert [client.id for client in federation.clients] == ["01", "02", "03"]
    assert [(len(client.train), len(client.test)) for client in federation.clients] == [(6, 2)] * 3
    assert federation.classes == 8
    assert federation.has(0, "audio")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    return read(unpacked("ravdess", tmp_path_factory))


@pytest.mark.real_data
def test_all_real_recordings_are_there(recordings: Pool) -> None:
    assert torch.bincount(recordings.targets).tolist() == [96] + [192] * 7
    assert recordings.classes == EMOTIONS
    assert recordings.owners is not None
    assert dict(zip(*np.unique(recordings.owners, return_counts=True), strict=True)) == {
        f"{actor:02d}": 60 for actor in range(1, 25)
    }
    values, lengths = recordings.inputs
    assert values.shape == (1440, 328, 64)
    assert (int(lengths.min()), int(lengths.max())) == (182, 328)


@pytest.mark.real_data
def test_real_recordings_are_standardised_clip_by_clip(recordings: Pool) -> None:
    values, lengths = recordings.inputs
    for k in (0, 700, 1439):
        clip = values[k, : lengths[k]].float()
        assert abs(clip.mean()) < 1e-3
        assert abs(clip.std() - 1) < 1e-2
        assert not values[k, lengths[k] :].any()


@pytest.mark.real_data
def test_the_papers_network_trains_a_round_on_real_voices(recordings: Pool) -> None:
    assert recordings.owners is not None
    chosen = np.isin(recordings.owners, ["01", "02"])
    taken = torch.from_numpy(np.flatnonzero(chosen))
    federation = fedapm.Federation.from_arrays(
        tuple(values[taken] for values in recordings.inputs), recordings.targets[taken], recordings.owners[chosen]
    )
    result = fedapm.train(
        federation,
        lambda: MMActionClassifier(classes=8, audio_dim=64, video_dim=0),
        preset="input",
        rounds=2,
        fraction=1.0,
        batch_size=20,
        lr=0.1,
        epochs=1,
        seed=1,
    )
    assert result.history["train_loss"].iloc[-1] < result.history["train_loss"].iloc[0]
