"""The masks themselves: for each two clients of a group a ChaCha20 stream, added by one of them and subtracted by the
other.

    y_i = q_i + Σ_{j after i} s_ij − Σ_{j before i} s_ij   mod 2^bits

All y_i of a group add up to Σ q_i; any fewer of them are uniform and independent of q. A stream's key is made by HKDF
of the two clients' secret and of everything that says what it is for: run, round, nonce, and the group with all its
keys. Clients that were told of different groups have masks that never cancel.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedapm.core.algorithm import NUMBERS
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.uploads.masks.keys import LENGTH, MaskKey

PURPOSE = "fedapm mask 1"
WORDS = {torch.int32: "<u4", torch.int64: "<u8"}
"""For each type of whole numbers that of the words a stream is read as; their sums wrap around."""


@dataclass(frozen=True)
class Group:
    """The clients whose messages are added up, and what for."""

    run: str
    round: int
    nonce: str
    """What tells this group's masks from those of the same clients in the same round."""
    keys: Mapping[str, bytes]
    """The public key of each client, by id."""

    @property
    def digest(self) -> bytes:
        """A checksum of all of it."""
        members = [[client, key.hex()] for client, key in sorted(self.keys.items())]
        return hashlib.sha256(json.dumps([PURPOSE, self.run, self.round, self.nonce, members]).encode()).digest()

    def masked(self, wire: Vec, client: str, key: MaskKey) -> Vec:
        """A client's message as it is sent.

        Args:
            wire: The message: tensors of whole numbers; single numbers (``numbers/…``) stay as they are.
            client: Whose message it is.
            key: That client's key.

        Raises:
            FedapmError: If the client is not in the group, or with another key.
        """
        if self.keys.get(client) != key.public:
            raise FedapmError(f"client {client} is not in the group with its own key.")
        digest = self.digest
        hidden = {name: words(tensor) for name, tensor in wire.items() if covered(name)}
        for other, public in self.keys.items():
            if other == client:
                continue
            pair = "\0".join(sorted([client, other])).encode()
            cipher = Cipher(ChaCha20(_derived(key.secret(public), digest + pair), bytes(16)), mode=None).encryptor()
            for name, numbers in hidden.items():
                stream = np.frombuffer(cipher.update(bytes(numbers.nbytes)), numbers.dtype).reshape(numbers.shape)
                hidden[name] = numbers + stream if client < other else numbers - stream
        return Vec({name: _tensor(hidden[name]) if name in hidden else tensor for name, tensor in wire.items()})


def added(wires: Sequence[Vec]) -> Vec:
    """The sum of messages, of which the whole numbers wrap around; single numbers are left out.

    Args:
        wires: What all clients of a group sent; at least one.
    """
    totals = {name: words(tensor) for name, tensor in wires[0].items() if covered(name)}
    for wire in wires[1:]:
        totals = {name: total + words(wire[name]) for name, total in totals.items()}
    return Vec({name: _tensor(total) for name, total in totals.items()})


def covered(name: str) -> bool:
    """Whether a part of a message is masked."""
    return not name.startswith(f"{NUMBERS}/")


def words(tensor: torch.Tensor) -> np.ndarray:
    """Whole numbers as the words that sums are taken of."""
    numbers: np.ndarray = tensor.detach().cpu().contiguous().numpy()
    return numbers.view(WORDS[tensor.dtype])


def _tensor(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(numbers.view(numbers.dtype.str.replace("u", "i")))


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), LENGTH, salt=None, info=purpose).derive(secret)
