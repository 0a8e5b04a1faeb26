"""Video as features: frames spread evenly over a clip, and one line about every kind of damage."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapm.data.features import video
from tests.data.features.test_audio import POINTER, tone, write_wav
from tests.helpers.unit import few, refused

KINDS = [("clip.flv", "flv"), ("clip.mp4", "libx264"), ("clip.avi", "mpeg4")]


def write_film(
    path: Path, count: int = 40, codec: str = "flv", size: tuple[int, int] = (48, 64), sound: bool = True
) -> Path:
    """A clip that goes from black to white, with a white bar that moves to the right at its top, and a tone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    high, wide = size
    with av.open(str(path), "w") as media:
        film = media.add_stream(codec, rate=20)
        film.width, film.height, film.pix_fmt = wide, high, "yuv420p"
        track = media.add_stream("aac", rate=44_100, layout="mono") if sound else None
        for k in range(count):
            media.mux(film.encode(av.VideoFrame.from_ndarray(picture(k, count, size), format="rgb24")))
        media.mux(film.encode())
        if track is not None:
            heard = av.AudioFrame.from_ndarray(tone(440.0, count / 20, 44_100)[None], format="fltp", layout="mono")
            heard.sample_rate = 44_100
            media.mux(track.encode(heard))
            media.mux(track.encode())
    return path


def picture(k: int, count: int, size: tuple[int, int] = (48, 64)) -> np.ndarray:
    high, wide = size
    made = np.full((high, wide, 3), round(200 * k / count), np.uint8)
    left = (wide - 8) * k // count
    made[: high // 4, left : left + 8] = 255
    return made


def shades(frames: list[np.ndarray]) -> np.ndarray:
    """How far through the clip each frame is, by its lower half, as a share."""
    return np.array([frame[frame.shape[0] // 2 :].mean() / 200 for frame in frames])


@pytest.mark.parametrize(("name", "codec"), KINDS)
def test_ten_frames_are_the_middles_of_ten_pieces(tmp_path: Path, name: str, codec: str) -> None:
    found = video.frames(write_film(tmp_path / name, 40, codec))
    assert len(found) == 10
    assert {(frame.shape, frame.dtype) for frame in found} == {((48, 64, 3), np.dtype(np.uint8))}
    assert np.allclose(shades(found), (np.arange(10) * 4 + 2) / 40, atol=0.02)
    bar = found[5][: 48 // 4].mean((0, 2)).argmax()
    assert 56 * 22 // 40 - 2 <= bar <= 56 * 22 // 40 + 10


def test_a_short_clip_gives_all_its_frames(tmp_path: Path) -> None:
    found = video.frames(write_film(tmp_path / "clip.flv", 4))
    assert np.allclose(shades(found), np.arange(4) / 4, atol=0.02)
    assert len(video.frames(write_film(tmp_path / "one.flv", 1))) == 1


def test_colours_are_red_green_blue(tmp_path: Path) -> None:
    path = tmp_path / "red.mp4"
    with av.open(str(path), "w") as media:
        film = media.add_stream("libx264", rate=10)
        film.width, film.height, film.pix_fmt = 32, 32, "yuv420p"
        red = np.broadcast_to(np.array([220, 20, 20], np.uint8), (32, 32, 3))
        for _ in range(3):
            media.mux(film.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(red), format="rgb24")))
        media.mux(film.encode())
    mean = video.frames(path)[1].mean((0, 1))
    assert mean[0] > 180
    assert max(mean[1], mean[2]) < 60


@few
@given(st.integers(1, 400), st.integers(1, 12))
def test_positions_are_even_increasing_and_inside(count: int, most: int) -> None:
    found = video.evenly_spaced(count, most)
    assert len(found) == min(count, most)
    assert found == sorted(set(found))
    assert 0 <= found[0] <= found[-1] < count
    gaps = np.diff([-1 - found[0], *found, 2 * count - 1 - found[-1]])
    assert np.abs(np.diff(gaps[1:-1])).max(initial=0) <= 1
    assert abs(found[0] - (count - 1 - found[-1])) <= 1, "as far from the start as from the end"


def test_frames_go_through_the_encoder_and_are_padded(tmp_path: Path) -> None:
    paths = [write_film(tmp_path / f"{k}.flv", k) for k in (3, 25)]
    made = video.encode(
        paths, lambda pictures: torch.tensor([[float(p[24:].mean()), float(p.shape[1])] for p in pictures])
    )
    assert made["video"].shape == (2, 10, 2)
    assert made["video"].dtype == torch.float16
    assert made["video_length"].tolist() == [3, 10]
    assert not made["video"][0, 3:].any()
    assert np.allclose(made["video"][1, :, 0] / 200, (np.array(video.evenly_spaced(25, 10))) / 25, atol=0.02)


def test_what_a_cut_off_flv_still_holds_is_used(tmp_path: Path) -> None:
    path = write_film(tmp_path / "clip.flv", 40, sound=False)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = shades(video.frames(path))
    assert len(found) == 10
    assert 0.2 < found.max() < 0.75
    assert (np.diff(found) > 0).all()


def test_a_damaged_piece_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    path = write_film(tmp_path / "clip.avi", 40, "mpeg4", sound=False)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    path.write_bytes(content)
    assert 1 <= len(video.frames(path)) <= 10


@pytest.mark.parametrize("kind", ["empty", "header alone", "cut in its header", "text", "noise"])
def test_a_broken_film_is_named_in_one_line(tmp_path: Path, kind: str) -> None:
    path = write_film(tmp_path / "1001_DFA_ANG_XX.flv")
    good = path.read_bytes()
    contents = {
        "empty": b"",
        "header alone": good[:13],
        "cut in its header": good[:300],
        "text": b"Not found.\n" * 100,
        "noise": np.random.default_rng(0).bytes(5000),
    }
    path.write_bytes(contents[kind])
    with refused(str(path), "fetch it again"):
        video.frames(path)


def test_an_mp4_without_its_index_is_named(tmp_path: Path) -> None:
    path = write_film(tmp_path / "clip.mp4", 20, "libx264")
    path.write_bytes(path.read_bytes()[:-200])
    with refused(str(path), "fetch it again"):
        video.frames(path)


def test_a_film_without_pictures_is_named(tmp_path: Path) -> None:
    with refused("voice.wav", "no video track"):
        video.frames(write_wav(tmp_path / "voice.wav", tone(440.0, 1.0, 16_000)))
    path = tmp_path / "none.flv"
    with av.open(str(path), "w") as media:
        film = media.add_stream("flv", rate=20)
        film.width, film.height, film.pix_fmt = 64, 48, "yuv420p"
        media.start_encoding()
    with refused("none.flv", "fetch it again"):
        video.frames(path)


def test_a_git_lfs_pointer_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "1001_DFA_ANG_XX.flv"
    path.write_text(POINTER)
    with refused(str(path), "git-lfs pointer", "git lfs pull"):
        video.frames(path)


def test_a_missing_film_is_named(tmp_path: Path) -> None:
    with refused("gone.flv", "missing"):
        video.frames(tmp_path / "gone.flv")
