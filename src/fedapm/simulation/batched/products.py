"""Products of many small matrices: by numpy, whose BLAS has kernels for them, where torch would copy each one first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

FEWEST = 16
"""Matrices from which a stack is worth it."""
MOST_ROWS = 16
"""Rows of the other factor up to which numpy is faster."""
LARGEST = 1 << 18
"""Multiplications up to which the product of two matrices is a small one; BLAS uses one thread for it, too."""

Product = Callable[[Tensor], Tensor]


def small_products(factor: Tensor, rows: int) -> Product | None:
    """The products x·factor of a stack of matrices, where they are small and many.

    Args:
        factor: (matrices, columns of x, columns of the product). It is read where it lies, also when it has changed.
        rows: The rows of each x.

    Returns:
        A function of x, whose result has memory of its own; None where torch is as fast or numpy cannot compute it.
    """
    count, inner, columns = factor.shape
    if factor.device.type != "cpu" or factor.dtype not in (torch.float32, torch.float64):
        return None
    if count < FEWEST or rows > MOST_ROWS or rows * inner * columns > LARGEST:
        return None
    array = factor.detach().numpy()
    return lambda x: torch.from_numpy(np.matmul(x.numpy(), array))
