"""Hand-made features: known signals have known features, and nothing depends on other windows or clips."""

from __future__ import annotations

import numpy as np
import pytest

from fedapm.data.features.statistics import (
    BANDS,
    CLIP_SCALES,
    CLIP_SHIFTS,
    NUMBERS,
    SCALES,
    SHIFTS,
    SMALLEST,
    clip_statistics,
    window_statistics,
)

TIME = np.arange(128) / 128


def unscaled(windows: np.ndarray) -> np.ndarray:
    """The features before shifts and scales, by window and axis."""
    count, axes, _ = windows.shape
    return window_statistics(windows).reshape(count, axes, NUMBERS) * SCALES + SHIFTS


@pytest.mark.parametrize("cycles", [1, 2, 3, 5, 6, 10, 11, 20, 21, 63])
def test_a_wave_has_its_energy_in_the_band_of_its_frequency(cycles: int) -> None:
    wave = 0.7 + 2.0 * np.sin(2 * np.pi * cycles * TIME + 0.3)
    mean, deviation, low, high, *bands = unscaled(wave[None, None])[0, 0]
    assert [mean, deviation] == pytest.approx([0.7, np.sqrt(2)], abs=1e-5)
    assert [low, high] == pytest.approx([wave.min(), wave.max()], abs=1e-5)
    energies = np.exp(bands) - SMALLEST
    expected = [2.0 if first <= cycles <= last else 0.0 for first, last in BANDS]
    assert energies.tolist() == pytest.approx(expected, abs=1e-4)


def test_the_bands_cover_every_frequency_once_and_their_energies_are_the_variance() -> None:
    assert [k for first, last in BANDS for k in range(first, last + 1)] == list(range(1, 65))
    windows = np.random.default_rng(0).normal(size=(20, 6, 128))
    energies = np.exp(unscaled(windows)[..., 4:]) - SMALLEST
    assert energies.sum(-1) == pytest.approx(windows.var(-1), rel=1e-4)


def test_a_window_at_rest_has_finite_features() -> None:
    features = unscaled(np.full((1, 6, 128), 1.25))[0]
    assert features[:, :4] == pytest.approx(np.tile([1.25, 0, 1.25, 1.25], (6, 1)), abs=1e-6)
    assert features[:, 4:] == pytest.approx(np.full((6, 5), np.log(SMALLEST)), abs=1e-5)


def test_axes_follow_each_other_and_windows_do_not_matter_to_each_other() -> None:
    windows = np.random.default_rng(1).normal(size=(7, 6, 128)).astype(np.float32)
    together = window_statistics(windows)
    assert together.shape == (7, 54)
    assert together.dtype == np.float32
    assert np.array_equal(together[3], window_statistics(windows[3:4])[0])
    assert np.array_equal(together[:, 9:18], window_statistics(windows[:, 1:2]))


def test_a_clip_has_three_numbers_a_band_and_padding_is_not_among_them() -> None:
    frames = np.full((2, 6, 2), 99.0, np.float32)
    frames[0, :4] = [[1, 0], [3, 0], [1, 0], [3, 0]]
    frames[1, :1] = [[5, -1]]
    found = clip_statistics(frames, np.array([4, 1])).reshape(2, 3, 2) * CLIP_SCALES[:, None] + CLIP_SHIFTS[:, None]
    assert found.tolist() == pytest.approx(np.array([[[2, 0], [1, 0], [2, 0]], [[5, -1], [0, 0], [0, 0]]]), abs=1e-5)


def test_clips_do_not_matter_to_each_other() -> None:
    stream = np.random.default_rng(2)
    frames, lengths = stream.normal(size=(5, 30, 64)).astype(np.float16), np.array([30, 7, 12, 1, 25])
    together = clip_statistics(frames, lengths)
    assert together.shape == (5, 192)
    assert together.dtype == np.float32
    assert np.array_equal(together[2], clip_statistics(frames[2:3], lengths[2:3])[0])
    assert np.array_equal(together[2], clip_statistics(frames[2:3, :12], lengths[2:3])[0])
