"""CREMA-D in its published layout: which clips are kept, what is made of them, and every way files can be wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedapm.data.dataset import Pool, Source
from fedapm.data.features import audio, video
from fedapm.data.features.images import EfficientNetLite0
from fedapm.data.partition import Natural
from fedapm.data.sets.cremad import CREMAD
from fedapm.models.mm_action import MMActionClassifier
from tests.data.features.test_audio import POINTER, speech, write_wav
from tests.data.features.test_video import write_film
from tests.helpers.unit import refused

HEADER = '"","FileName","VoiceVote","VoiceLevel","FaceVote","FaceLevel","MultiModalVote","MultiModalLevel"'
KEPT = {
    "1001_DFA_ANG_XX": "A",
    "1001_IEO_HAP_HI": "H",
    "1001_TIE_SAD_XX": "N",
    "1002_IEO_SAD_LO": "S",
    "1002_ITH_NEU_XX": "N",
    "1040_ITH_SAD_X": "S",
}
LEFT_OUT = {
    "1001_IOM_ANG_XX": "F:N",
    "1001_IEO_FEA_HI": "F",
    "1002_TIE_DIS_XX": "D:H",
    "1002_IWW_DIS_XX": "A:N",
    "1003_X_Y_Z": "",
}
"""Ties, other emotions and no vote at all; their media are not there and must not be missed."""


def write_table(folder: Path, votes: dict[str, str], header: str = HEADER, newline: str = "\n") -> Path:
    path = folder / "processedResults" / "summaryTable.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        f'"{k}","{name}","N","69.1","A:F","30.67:51.00","{vote}","64.78"'
        for k, (name, vote) in enumerate(votes.items(), 1)
    ]
    path.write_bytes((newline.join([header, *rows]) + newline).encode())
    return path


def publish(folder: Path) -> Path:
    """A few clips as they are published, in no particular order, with a broken one that everybody leaves out."""
    listed = {**LEFT_OUT, "1076_MTI_SAD_XX": "S", **dict(reversed(KEPT.items()))}
    write_table(folder, listed)
    for k, name in enumerate(KEPT):
        write_wav(folder / "AudioWAV" / f"{name}.wav", speech(0.5 + 0.1 * k, seed=k))
        write_film(folder / "VideoFlash" / f"{name}.flv", 12 if k == 0 else 1 + k % 3)
    write_wav(folder / "AudioWAV" / "1076_MTI_SAD_XX.wav", np.zeros(0, np.float32))
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root whose features are prepared with the real image encoder."""
    root = tmp_path_factory.mktemp("data")
    publish(root / "CREMA-D")
    CREMAD().prepare(Source(root))
    return root


@pytest.fixture(scope="module")
def pool(root: Path) -> Pool:
    return CREMAD().read(Source(root))


@pytest.fixture
def fresh(tmp_path: Path, root: Path) -> Path:
    """The published files alone, for a test to damage."""
    return Path(shutil.copytree(root / "CREMA-D", tmp_path / "crema-d"))


def test_clips_with_one_of_four_votes_are_kept_by_name(pool: Pool) -> None:
    assert pool.classes == ("anger", "sadness", "happiness", "neutral")
    assert pool.targets.tolist() == [0, 2, 3, 1, 3, 1]
    assert pool.modalities == ("audio", "video")
    assert pool.owners is not None
    assert pool.owners.tolist() == ["1001", "1001", "1001", "1002", "1002", "1040"]


def test_sound_is_that_of_each_clip(pool: Pool, root: Path) -> None:
    sounds, _, lengths, _ = pool.inputs
    assert sounds.shape == (6, 101, 80)
    assert sounds.dtype == torch.float16
    assert lengths.tolist() == [51, 61, 71, 81, 91, 101]
    for k, name in enumerate(sorted(KEPT)):
        expected = torch.from_numpy(audio.features(root / "CREMA-D" / "AudioWAV" / f"{name}.wav")).half()
        assert torch.equal(sounds[k, : lengths[k]], expected)
        assert not sounds[k, lengths[k] :].any()


def test_frames_are_those_of_each_clip_through_the_encoder(pool: Pool, root: Path) -> None:
    _, films, _, lengths = pool.inputs
    assert films.shape == (6, 10, 1280)
    assert films.dtype == torch.float16
    assert lengths.tolist() == [10, 2, 3, 1, 2, 3]
    encode = EfficientNetLite0()
    for k in (0, 2):
        path = root / "CREMA-D" / "VideoFlash" / f"{sorted(KEPT)[k]}.flv"
        expected = encode(video.frames(path))
        assert torch.allclose(films[k, : lengths[k]].float(), expected.float(), atol=2e-2)
        assert not films[k, lengths[k] :].any()
    assert (films[0, 0] - films[0, 9]).abs().max() > 0.1, "a dark picture and a bright one differ"


def test_labels_need_the_table_alone(tmp_path: Path, pool: Pool) -> None:
    write_table(tmp_path, {**KEPT, **LEFT_OUT})
    labels = CREMAD().labels(Source(tmp_path))
    assert torch.equal(labels.targets, pool.targets)
    assert np.array_equal(labels.owners, pool.owners)
    assert labels.classes == pool.classes


@pytest.mark.parametrize("inside", [".", "CREMA-D", "crema-d"])
def test_the_root_is_the_folder_or_its_parent(tmp_path: Path, inside: str) -> None:
    write_table(tmp_path / inside, KEPT)
    assert len(CREMAD().labels(Source(tmp_path)).targets) == 6


def test_every_actor_is_a_client_and_the_papers_network_takes_them(root: Path) -> None:
    federation = CREMAD().federation(Source(root), Natural(minimum=2), test_fraction=0.5, seed=0)
    assert [client.id for client in federation.clients] == ["1001", "1002"]
    assert federation.classes == 4
    assert federation.has_lengths
    blind = federation.without({"video": [0]})
    assert not blind.has(0, "video")
    network = MMActionClassifier(classes=4, **MMActionClassifier.arguments_for(federation.shapes))
    scores = network(*federation[0].train.inputs)
    assert scores.shape == (len(federation[0].train), 4)
    assert torch.isfinite(scores).all()


def test_log_mel_is_another_set_of_features(root: Path) -> None:
    with refused("audio of crema-d", "fedapm data prepare crema-d"):
        CREMAD("logmel").read(Source(root))


def test_clips_that_were_not_prepared_say_what_to_run(fresh: Path) -> None:
    with refused("audio of crema-d", "fedapm data prepare crema-d"):
        CREMAD().read(Source(fresh.parent))


@pytest.mark.parametrize(("folder", "suffix"), [("AudioWAV", ".wav"), ("VideoFlash", ".flv")])
def test_a_missing_clip_is_named(fresh: Path, folder: str, suffix: str) -> None:
    path = fresh / folder / f"1002_ITH_NEU_XX{suffix}"
    path.unlink()
    for use in (CREMAD().read, CREMAD().prepare):
        with refused(str(path), "missing", "summaryTable.csv"):
            use(Source(fresh))


@pytest.mark.parametrize(("folder", "suffix"), [("AudioWAV", ".wav"), ("VideoFlash", ".flv")])
def test_a_git_lfs_pointer_is_called_by_its_name(fresh: Path, folder: str, suffix: str) -> None:
    path = fresh / folder / f"1002_ITH_NEU_XX{suffix}"
    path.write_text(POINTER)
    with refused(str(path), "git-lfs pointer", "git lfs pull"):
        CREMAD().prepare(Source(fresh))


@pytest.mark.parametrize("folder", ["AudioWAV", "VideoFlash"])
def test_a_missing_folder_is_named(fresh: Path, folder: str) -> None:
    shutil.rmtree(fresh / folder)
    for use in (CREMAD().read, CREMAD().prepare):
        with refused(str(fresh / folder), "missing", "fedapm data get crema-d"):
            use(Source(fresh))


@pytest.mark.parametrize(("folder", "suffix"), [("AudioWAV", ".wav"), ("VideoFlash", ".flv")])
def test_a_broken_clip_is_named(fresh: Path, folder: str, suffix: str) -> None:
    path = fresh / folder / f"1001_DFA_ANG_XX{suffix}"
    path.write_bytes(path.read_bytes()[:30])
    with refused(str(path), "fetch it again"):
        CREMAD().prepare(Source(fresh))


def test_the_table_of_demographics_may_be_absent_and_the_summary_may_not(fresh: Path) -> None:
    assert not (fresh / "VideoDemographics.csv").exists()
    (fresh / "processedResults" / "summaryTable.csv").unlink()
    with refused("summaryTable.csv", "missing"):
        CREMAD().labels(Source(fresh))


def test_nothing_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "gone"):
        with refused(str(root), "AudioWAV", "fedapm data get crema-d"):
            CREMAD().labels(Source(root))
    assert CREMAD.origin is not None
    assert "git-lfs" in CREMAD.origin.by_hand


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_byte_order_mark_and_other_line_ends_do_no_harm(tmp_path: Path, newline: str) -> None:
    path = write_table(tmp_path, KEPT, newline=newline)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(CREMAD().labels(Source(tmp_path)).targets) == 6


def test_a_table_without_the_column_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path, KEPT, header=HEADER.replace("MultiModalVote", "Vote"))
    with refused("summaryTable.csv", "MultiModalVote"):
        CREMAD().labels(Source(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00\x00", HEADER.encode() + b"\n", POINTER.encode(), b"a,b\n1,2\n"]
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write_table(tmp_path, KEPT)
    path.write_bytes(content)
    with refused(str(path)):
        CREMAD().labels(Source(tmp_path))


def test_a_row_that_is_cut_off_or_wrongly_coded_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path, KEPT)
    whole = path.read_bytes()
    path.write_bytes(whole + b'"7","1003_IEO_ANG_XX","N"\n')
    with refused(str(path), "line 8", "cut off"):
        CREMAD().labels(Source(tmp_path))
    path.write_bytes(whole + b'"7","1003_\xe9","N","1","N","1","N","1"\n')
    with refused(str(path), "utf-8"):
        CREMAD().labels(Source(tmp_path))


@pytest.mark.parametrize("name", ["../../etc/passwd", "1001_DFA_ANG_XX.wav", "", "1001", "x" * 500, "1001_A_B_C/.."])
def test_a_name_that_is_no_clips_is_refused(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path, {**KEPT, name: "A"})
    with refused(str(path), "line 8"):
        CREMAD().labels(Source(tmp_path))


def test_a_clip_that_is_listed_twice_counts_once_and_must_agree(tmp_path: Path) -> None:
    path = write_table(tmp_path, KEPT)
    whole = path.read_bytes()
    path.write_bytes(whole + b'"7","1001_DFA_ANG_XX","N","1","N","1","A","1"\n')
    assert len(CREMAD().labels(Source(tmp_path)).targets) == 6
    path.write_bytes(whole + b'"7","1001_DFA_ANG_XX","N","1","N","1","S","1"\n')
    with refused(str(path), "line 8", "1001_DFA_ANG_XX", "twice"):
        CREMAD().labels(Source(tmp_path))


def test_a_table_without_any_vote_that_counts_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path, LEFT_OUT)
    with refused("summaryTable.csv", "no clip"):
        CREMAD().labels(Source(tmp_path))
