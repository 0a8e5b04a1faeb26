"""Random streams keyed by (seed, purpose, client, round).

A draw depends only on its key, never on what was drawn before it, so results do not change with
the engine, the order of clients, the number of workers, or a restart in the middle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def key(seed: int, purpose: str, *ids: int | str) -> int:
    """A 63-bit number that is as good as unique for this key."""
    text = "\x1f".join([str(seed), purpose, *(repr(part) if isinstance(part, str) else str(part) for part in ids)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, purpose: str, *ids: int | str) -> torch.Generator:
    """A torch generator (on the CPU, whatever the device) at the start of this key's stream."""
    return torch.Generator().manual_seed(key(seed, purpose, *ids))


def numpy_generator(seed: int, purpose: str, *ids: int | str) -> np.random.Generator:
    """A numpy generator at the start of this key's stream."""
    return np.random.default_rng(key(seed, purpose, *ids))


@contextmanager
def seeded_globally(device: torch.device, seed: int, purpose: str, *ids: int | str) -> Iterator[None]:
    """Torch's own global generator, as dropout and initialisers use it, put on this key's stream for a while."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        if device.type == "cpu":
            # torch.manual_seed also writes down a traceback for each kind of device that is not there
            torch.default_generator.manual_seed(key(seed, purpose, *ids))
        else:
            torch.manual_seed(key(seed, purpose, *ids))
        yield
