"""Gaussian noise: from the operating system where it is to protect somebody, from a key where a test repeats it.

Noise that is drawn anew in each round adds up in the server's model: after T rounds its variance is T times that of
one. With a tree each draw belongs to the sum over a span of rounds, and what was added for shorter spans is taken back
when a longer one covers them. After T rounds only as many draws are left as T has ones in binary. A client moves longer
sums farther, which the accountant knows: a tree pays where clients take part seldom.

Dwork, Naor, Pitassi, Rothblum: Differential Privacy under Continual Observation. STOC 2010.
Kairouz, McMahan, Song, Thakkar, Thakurta, Xu: Practical and Private (Deep) Learning without Sampling or Shuffling.
ICML 2021.
"""

from __future__ import annotations

import os

import numpy as np
import torch

from fedapm.core.random import torch_generator
from fedapm.core.vec import Vec

BITS = 53
"""What a float64 holds of a number between 0 and 1."""


def span(round: int, tree: bool) -> int:
    """Over how many rounds up to this one the sum is that its draw of noise belongs to."""
    return round & -round if tree else 1


def system_noise(like: Vec, deviation: float) -> Vec:
    """Noise that nobody can make again, because its random numbers are those of the operating system.

    Args:
        like: A vector of the same shape.
        deviation: The standard deviation of each coordinate.
    """
    from scipy.special import ndtri  # takes as long to import as the package

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
