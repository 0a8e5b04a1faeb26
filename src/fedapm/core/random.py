"""Random streams keyed by (seed, purpose, client, round).

A draw depends only on its key, not on earlier draws, so results do not change with the engine, the order of clients,
the number of workers, or a resumed run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


def key(seed: int, purpose: str, *ids: int | str) -> int:
    """A 63-bit hash of the key."""
    text = "\x1f".join([str(seed), purpose, *[repr(part) if isinstance(part, str) else str(part) for part in ids]])
    return _hashed(text)


def keys(seed: int, purpose: str, clients: Sequence[int], *ids: int) -> list[int]:
    """The hash of (seed, purpose, client, ids) for each client."""
    beginning = hashlib.blake2b(f"{seed}\x1f{purpose}\x1f".encode(), digest_size=8)
    end = "".join([f"\x1f{part}" for part in ids])
    digests = []
    for client in clients:
        one = beginning.copy()
        one.update(f"{client}{end}".encode())
        digests.append(one.digest())
    found: list[int] = (np.frombuffer(b"".join(digests), ">u8") >> 1).tolist()
    return found


def torch_generators(seed: int, purpose: str, clients: Sequence[int], *ids: int) -> list[torch.Generator]:
    """A torch generator for each client: those of the keys (seed, purpose, client, ids)."""
    return [torch.Generator().manual_seed(number) for number in keys(seed, purpose, clients, *ids)]


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, purpose: str, *ids: int | str) -> torch.Generator:
    """A torch generator for this key; always on the CPU."""
    return torch.Generator().manual_seed(key(seed, purpose, *ids))


def numpy_generator(seed: int, purpose: str, *ids: int | str) -> np.random.Generator:
    """A numpy generator for this key."""
    return np.random.default_rng(key(seed, purpose, *ids))


def numpy_generators(seed: int, purpose: str, clients: Sequence[int], *ids: int) -> list[np.random.Generator]:
    """A numpy generator for each client: those of the keys (seed, purpose, client, ids)."""
    return [np.random.default_rng(number) for number in keys(seed, purpose, clients, *ids)]


@contextmanager
def seeded_globally(device: torch.device, seed: int, purpose: str, *ids: int | str) -> Iterator[None]:
    """Seed torch's global generator, which dropout and initializers use, with this key; restored on exit."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        if device.type == "cpu":
            # torch.manual_seed is slow: it also records a traceback for each kind of device that is absent
            torch.default_generator.manual_seed(key(seed, purpose, *ids))
        else:
            torch.manual_seed(key(seed, purpose, *ids))
        yield
