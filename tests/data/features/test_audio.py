"""Sound as features: what librosa says, the same from every kind of file, and one line about every kind of damage."""

from __future__ import annotations

import wave
from pathlib import Path

import av
import librosa
import numpy as np
import pytest
import torch

from fedapm.data.features import audio
from tests.helpers.unit import refused

POINTER = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:10dc3fd1f2bc8203657431598bd7dc9312462008\nsize 265922\n"
)
OPTIONS = {"sr": 16_000, "n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 80}


def speech(seconds: float = 1.0, rate: int = 16_000, seed: int = 0) -> np.ndarray:
    """Harmonics that glide and swell over a little noise."""
    time = np.arange(int(seconds * rate)) / rate
    stream = np.random.default_rng(seed)
    pitch = 120 + 30 * np.sin(2 * np.pi * 1.5 * time + seed)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voiced = sum(np.sin(k * phase) / k for k in range(1, 12))
    swell = 0.2 + 0.8 * np.abs(np.sin(2 * np.pi * 2 * time))
    return (0.2 * swell * voiced + 0.005 * stream.normal(size=len(time))).astype(np.float32)


def tone(frequency: float, seconds: float, rate: int) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def write_wav(path: Path, signal: np.ndarray, rate: int = 16_000, channels: int = 1) -> Path:
    """A plain 16-bit wav file, the same signal in every channel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = np.round(np.clip(signal, -1, 1) * 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat(whole, channels).tobytes())
    return path


def write_coded(path: Path, codec: str, signal: np.ndarray, rate: int, layout: str = "stereo") -> Path:
    """A compressed file, the same signal in every channel."""
    with av.open(str(path), "w") as media:
        stream = media.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(
            np.repeat(signal[None], 2 if layout == "stereo" else 1, 0), format="fltp", layout=layout
        )
        frame.sample_rate = rate
        fitted = av.AudioResampler(format=stream.codec_context.format.name, layout=layout, rate=rate)
        for part in (*fitted.resample(frame), *fitted.resample(None), None):
            media.mux(stream.encode(part))
    return path


def pitch(signal: np.ndarray, rate: int = 16_000) -> float:
    """The strongest frequency."""
    spectrum = np.abs(np.fft.rfft(signal * np.hanning(len(signal))))
    return float(spectrum.argmax() * rate / len(signal))


def test_log_mel_is_what_librosa_says() -> None:
    signal = speech(2.0)
    expected = librosa.power_to_db(librosa.feature.melspectrogram(y=signal, **OPTIONS)).T
    assert np.allclose(audio.logmel(signal), expected, atol=1e-4)
    assert np.allclose(audio.frames(signal, "logmel"), (expected - expected.mean()) / expected.std(), atol=1e-4)


def test_mfcc_is_what_librosa_says_but_for_one_shift_and_one_scale() -> None:
    signal = speech(2.0)
    decibels = audio.logmel(signal)
    expected = librosa.feature.mfcc(y=signal, n_mfcc=80, **OPTIONS).T
    # the mean of the log-mel values is a constant in every band, which the first coefficient alone holds
    expected[:, 0] -= decibels.mean() * np.sqrt(80)
    found = audio.frames(signal)
    assert found.shape == (201, 80)
    assert found.dtype == np.float32
    assert np.allclose(found, expected / decibels.std(), atol=1e-3)


def test_loudness_does_not_matter_and_the_spread_over_bands_does() -> None:
    signal = speech(1.0)
    assert np.allclose(audio.frames(0.25 * signal), audio.frames(signal), atol=1e-3)
    assert np.abs(audio.frames(np.diff(signal, prepend=0.0)) - audio.frames(signal)).max() > 0.5


def test_the_first_six_seconds_are_kept(tmp_path: Path) -> None:
    signal = speech(8.0)
    long, cut = audio.frames(signal, "logmel"), audio.frames(signal[: audio.MAX_SAMPLES], "logmel")
    assert long.shape == (600, 80)
    assert np.array_equal(long, cut)
    assert len(audio.read_audio(write_wav(tmp_path / "long.wav", signal))) == audio.MAX_SAMPLES
    assert audio.features(tmp_path / "long.wav").shape == (600, 80)
    whole = librosa.power_to_db(librosa.feature.melspectrogram(y=signal, **OPTIONS)).T[:600]
    assert np.allclose(audio.logmel(signal), whole, atol=1e-4), "the last frame kept sees all of its window"


@pytest.mark.parametrize(("rate", "channels"), [(44_100, 2), (48_000, 1), (8_000, 1), (16_000, 6)])
def test_every_rate_and_number_of_channels_becomes_mono_at_16_khz(tmp_path: Path, rate: int, channels: int) -> None:
    signal = audio.read_audio(write_wav(tmp_path / "tone.wav", tone(1000.0, 1.0, rate), rate, channels))
    assert signal.dtype == np.float32
    assert signal.ndim == 1
    assert abs(len(signal) - 16_000) <= 40
    assert pitch(signal) == pytest.approx(1000.0, abs=2.0)


def test_what_is_above_8_khz_is_gone_and_not_folded_down(tmp_path: Path) -> None:
    both = tone(1000.0, 1.0, 44_100) + tone(11_000.0, 1.0, 44_100)
    signal = audio.read_audio(write_wav(tmp_path / "both.wav", both, 44_100, 2))[2000:-2000]
    spectrum = np.abs(np.fft.rfft(signal * np.hanning(len(signal))))
    frequencies = np.fft.rfftfreq(len(signal), 1 / 16_000)
    elsewhere = spectrum[np.abs(frequencies - 1000) > 20].max()
    assert elsewhere < 1e-2 * spectrum.max()


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp3", "libmp3lame"), ("a.flac", "flac"), ("a.mp4", "aac"), ("a.flv", "aac")]
)
def test_compressed_files_sound_like_the_wav(tmp_path: Path, name: str, codec: str) -> None:
    signal = tone(1000.0, 1.0, 44_100)
    found = audio.read_audio(write_coded(tmp_path / name, codec, signal, 44_100))
    assert 0.95 < len(found) / 16_000 < 1.15
    assert pitch(found) == pytest.approx(1000.0, abs=3.0)


def test_a_track_may_change_its_rate_on_the_way(tmp_path: Path) -> None:
    for name, rate in (("a.mp3", 44_100), ("b.mp3", 22_050)):
        write_coded(tmp_path / name, "libmp3lame", tone(1000.0, 1.0, rate), rate)
    both = tmp_path / "both.mp3"
    both.write_bytes((tmp_path / "a.mp3").read_bytes() + (tmp_path / "b.mp3").read_bytes())
    found = audio.read_audio(both)
    assert len(found) > 1.8 * 16_000
    assert pitch(found[:16_000]) == pytest.approx(1000.0, abs=3.0)
    assert pitch(found[-14_000:-2000]) == pytest.approx(1000.0, abs=3.0)


@pytest.mark.parametrize("kind", ["mfcc", "logmel"])
@pytest.mark.parametrize("level", [0.0, 0.25])
def test_silence_becomes_zero(tmp_path: Path, kind: audio.Kind, level: float) -> None:
    found = audio.features(write_wav(tmp_path / "still.wav", np.full(16_000, level, np.float32)), kind)
    assert found.shape == (101, 80)
    assert np.isfinite(found).all()
    if level == 0:
        assert not found.any()


@pytest.mark.parametrize("samples", [1, 100, 511, 512])
def test_very_short_clips_have_frames(tmp_path: Path, samples: int) -> None:
    found = audio.features(write_wav(tmp_path / "short.wav", speech(1.0)[5000 : 5000 + samples]))
    assert found.shape == (4, 80)
    assert np.isfinite(found).all()


def test_clips_are_padded_and_measured(tmp_path: Path) -> None:
    paths = [write_wav(tmp_path / f"{k}.wav", speech(k, seed=k)) for k in (1, 2)]
    made = audio.encode(paths)
    assert made["audio"].shape == (2, 201, 80)
    assert made["audio"].dtype == torch.float16
    assert made["audio_length"].tolist() == [101, 201]
    assert not made["audio"][0, 101:].any()
    assert torch.equal(made["audio"][1], torch.from_numpy(audio.features(paths[1])).half())


def test_settings_tell_kinds_apart() -> None:
    assert audio.settings("mfcc") != audio.settings("logmel")
    with refused("mel", "logmel"):
        audio.frames(speech(), "mel")  # type: ignore[arg-type]


def damage(path: Path, kind: str) -> None:
    good = write_wav(path, speech(1.0)).read_bytes()
    # a playlist must not make other files be read in place of this one
    path.with_name("other.wav").write_bytes(good)
    contents = {
        "empty": b"",
        "header cut off": good[:20],
        "no samples": good[:44],
        "text": b"Not found.\n" * 100,
        "noise": np.random.default_rng(0).bytes(5000),
        "playlist": b"ffconcat version 1.0\nfile other.wav\n",
        "pointer": POINTER.encode(),
    }
    path.write_bytes(contents[kind])


@pytest.mark.parametrize("kind", ["empty", "header cut off", "no samples", "text", "noise", "playlist"])
def test_a_broken_file_is_named_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "1001_DFA_ANG_XX.wav"
    damage(path, kind)
    with refused(str(path), "fetch it again"):
        audio.features(path)


def test_a_git_lfs_pointer_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "1001_DFA_ANG_XX.wav"
    damage(path, "pointer")
    with refused(str(path), "git-lfs pointer", "git lfs pull"):
        audio.features(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with refused(str(tmp_path / "gone.wav"), "missing"):
        audio.features(tmp_path / "gone.wav")
    with refused(str(tmp_path), "directory"):
        audio.features(tmp_path)


def test_a_film_without_sound_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mute.mp4"
    with av.open(str(path), "w") as media:
        stream = media.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            media.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
        media.mux(stream.encode())
    with refused(str(path), "no audio track"):
        audio.features(path)


def test_what_a_cut_off_wav_still_holds_is_used(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "cut.wav", speech(1.0))
    path.write_bytes(path.read_bytes()[: 44 + 16_000])
    assert audio.features(path).shape == (51, 80)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_samples_that_are_no_sound_are_refused(tmp_path: Path, value: float) -> None:
    path = tmp_path / "wild.wav"
    samples = np.r_[speech(0.5), np.float32(value)].astype("<f4").tobytes()
    header = b"RIFF" + (36 + len(samples)).to_bytes(4, "little") + b"WAVEfmt " + (16).to_bytes(4, "little")
    form = [(3, 2), (1, 2), (16_000, 4), (64_000, 4), (4, 2), (32, 2)]
    header += b"".join(number.to_bytes(size, "little") for number, size in form)
    path.write_bytes(header + b"data" + len(samples).to_bytes(4, "little") + samples)
    with refused(str(path), "NaN, infinite or huge"):
        audio.features(path)
