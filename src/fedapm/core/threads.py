"""One thread for what is small.

A small operation takes less time than dealing it out, and where other programs are busy, threads that wait for each
other make it many times slower.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

ASKED = "OMP_NUM_THREADS"
"""The variable that says how many threads the user wants."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread for the time of a ``with`` block, unless the user asked for a number of them."""
    before = torch.get_num_threads()
    if before == 1 or ASKED in os.environ:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
