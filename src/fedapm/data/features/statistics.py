"""Hand-made features of sensor windows, nine numbers an axis, and of clips of sound, three numbers a band.

Of an axis they are mean, standard deviation, minimum, maximum and the energy in five spectral bands; of a band mean,
standard deviation and mean change from frame to frame. Nothing is learnt from data: all axes and all bands have the
same fixed shifts and scales, which suit signals that were standardized before. So no number of one person depends on
another person or on test data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BANDS = ((1, 2), (3, 5), (6, 10), (11, 20), (21, 64))
"""The first and last frequency of each band, in cycles a window of 128 samples; about an octave each."""
SMALLEST = 1e-3
"""Added to an energy, so that the logarithm of a resting sensor's noise says little."""
SHIFTS = np.array([0.0, 0.5, -1.0, 1.0, -4.0, -4.0, -4.0, -4.0, -4.0])
SCALES = np.array([1.0, 0.5, 1.5, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0])
"""Round numbers for the mean, the deviation, the extremes and the logarithms of the energies of an axis."""
NUMBERS = len(SHIFTS)
"""The features of an axis."""


def window_statistics(windows: Array) -> Array:
    """The features of standardized windows.

    Args:
        windows: The signals (n, axes, 128).

    Returns:
        The features (n, 9·axes) in single precision, axis by axis.
    """
    signal = windows.astype(np.float64)
    length = signal.shape[-1]
    power = 2 * np.abs(np.fft.rfft(signal)) ** 2 / length**2
    power[..., -1] /= 2  # the highest frequency occurs once, all others as a pair: the sum is the variance
    energies = [np.log(power[..., first : last + 1].sum(-1) + SMALLEST) for first, last in BANDS]
    features = np.stack([signal.mean(-1), signal.std(-1), signal.min(-1), signal.max(-1), *energies], axis=-1)
    scaled: Array = (features - SHIFTS) / SCALES
    return scaled.reshape(len(signal), -1).astype(np.float32)


CLIP_SHIFTS = np.array([0.0, 1.0, 0.2])
CLIP_SCALES = np.array([0.15, 0.1, 0.03])
"""Round numbers for the mean, the deviation and the mean change of a band of log-mel frames."""


def clip_statistics(frames: Array, lengths: Array) -> Array:
    """The features of standardized clips.

    Args:
        frames: The frames of each clip (n, most frames, bands).
        lengths: How many frames each clip has.

    Returns:
        The features (n, 3·bands) in single precision: all means, all deviations, all changes.
    """
    rows = []
    for clip, length in zip(frames, lengths, strict=True):
        values = clip[:length].astype(np.float64)
        change = np.abs(np.diff(values, axis=0)).mean(0) if length > 1 else np.zeros(values.shape[1])
        rows.append((np.stack([values.mean(0), values.std(0), change], axis=-1) - CLIP_SHIFTS) / CLIP_SCALES)
    return np.stack(rows).swapaxes(1, 2).reshape(len(rows), -1).astype(np.float32)
