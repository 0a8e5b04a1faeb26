"""Principal components: many features of an encoder reduced to fewer."""

from __future__ import annotations

import torch
from torch import Tensor

DECIMALS = 4
"""Digits that are kept, so that the last bits of a matrix product, which differ between machines, change nothing."""


def project(features: Tensor, fitted: Tensor, dim: int | None) -> Tensor:
    """Project features on the principal components of others, and scale them.

    Args:
        features: The features (n, width).
        fitted: The features (k, width) that components and scale are computed from.
        dim: The number of components; None keeps the features as they are and only centers and scales them.

    Returns:
        The projections (n, dim) in single precision. The components' mean variance on ``fitted`` is 1, in their own
        proportions; the largest coefficient of each component is positive.
    """
    center = fitted.double().mean(0)
    centered = fitted.double() - center
    if dim is None:
        components = torch.eye(fitted.shape[1], dtype=torch.float64)
    else:
        _, vectors = torch.linalg.eigh(centered.T @ centered)
        components = vectors[:, -dim:].flip(1)
        largest = components.gather(0, components.abs().argmax(0, keepdim=True))
        components = components * torch.where(largest < 0, -1.0, 1.0)
    scale = (centered @ components).square().mean().sqrt()
    return ((features.double() - center) @ (components / scale)).round(decimals=DECIMALS).float()
