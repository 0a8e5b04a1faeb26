"""Where clients' states are kept between rounds: in memory, as tables, or on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from fedapm.simulation.stores.base import InitClient, Store
from fedapm.simulation.stores.disk import DiskStore
from fedapm.simulation.stores.memory import MemoryStore

LARGE = 2**30
"""Where there is a choice, clients are kept on disk if all of them together are larger than this many bytes."""
StoreKind = Literal["memory", "disk", "auto"]


def open_store(
    kind: StoreKind,
    folder: Path | None,
    init: InitClient,
    population: int,
    device: torch.device | str = "cpu",
    in_memory: Callable[[InitClient], Store] = MemoryStore,
    most: int | None = None,
) -> Store:
    """The store of a run.

    Args:
        kind: Where states are kept; "auto" takes the disk where they are large.
        folder: The folder for states on disk; a temporary one if not given.
        init: How a client starts.
        population: The number of clients.
        device: Where states are put when they are read.
        in_memory: What makes a store in memory, for engines that have one of their own.
        most: How many clients can come to have a state of their own; all if None.

    Returns:
        An empty store.
    """
    large = hasattr(os, "preadv") and min(population, most or population) * init(0).nbytes > LARGE
    if kind == "memory" or (kind == "auto" and not large):
        return in_memory(init)
    if folder is None:
        return DiskStore.temporary(init, population, device)
    return DiskStore(folder, init, population, device)
