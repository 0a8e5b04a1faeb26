"""Gaussian noise: from the operating system where it is to protect somebody, from a key where a test repeats it."""

from __future__ import annotations

import os

import numpy as np
import torch
from scipy.special import ndtri

from fedapm.core.random import torch_generator
from fedapm.core.vec import Vec

BITS = 53
"""What a float64 holds of a number between 0 and 1."""


def system_noise(like: Vec, deviation: float) -> Vec:
    """Noise that nobody can make again, because its random numbers are those of the operating system.

    Args:
        like: A vector of the same shape.
        deviation: The standard deviation of each coordinate.
    """

    def draw(tensor: torch.Tensor) -> torch.Tensor:
        whole = np.frombuffer(os.urandom(8 * tensor.numel()), dtype=np.uint64) >> np.uint64(64 - BITS)
        normal = ndtri((whole.astype(np.float64) + 0.5) / 2.0**BITS)
        return (deviation * torch.from_numpy(normal).reshape(tensor.shape)).to(tensor)

    return like.map(draw)


def keyed_noise(like: Vec, deviation: float, seed: int, round: int) -> Vec:
    """The same noise in every run with the same seed: it protects nobody.

    Args:
        like: A vector of the same shape.
        deviation: The standard deviation of each coordinate.
        seed: The run's seed.
        round: The round.
    """
    stream = torch_generator(seed, "privacy", round)
    return like.map(
        lambda t: (deviation * torch.randn(t.shape, generator=stream, dtype=torch.float64)).to(t.device).to(t)
    )
