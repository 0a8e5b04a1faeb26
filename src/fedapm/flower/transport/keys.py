"""The keys of nodes, by their fingerprints, and the file that says which client each belongs to."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments.settings import read_toml
from fedapm.flower.text import shown

NONE = ""
"""The fingerprint of a node without a key of its own, as in Flower's simulation."""
FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


def fingerprint(key: bytes) -> str:
    """The fingerprint of a public key, as ``ssh-keygen -l`` shows it; empty for what is not a key."""
    try:
        loaded = load_pem_public_key(key) if key.startswith(b"-----") else load_ssh_public_key(key)
    except (ValueError, UnsupportedAlgorithm):
        return NONE
    if not isinstance(loaded, EllipticCurvePublicKey):
        return NONE
    content = base64.b64decode(loaded.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    return f"SHA256:{base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')}"


def read_keys(path: Path, clients: Sequence[str] | None = None) -> dict[str, str]:
    """Read which key each client has, of all that a file names.

    Args:
        path: A TOML file as :func:`read_registry` takes it.
        clients: The ids it may name; any if not given.

    Returns:
        The fingerprint of each client's key.

    Raises:
        FedapmError: If the file is malformed, names somebody else or gives two clients the same key.
    """
    keys: dict[str, str] = {}
    for client, value in read_toml(path).items():
        if clients is not None and client not in clients:
            raise FedapmError(f"{path} names client {shown(client)}; {did_you_mean(client, clients)}")
        given = value.strip() if isinstance(value, str) else ""
        key = given if FINGERPRINT.fullmatch(given) else fingerprint(given.encode())
        if key == NONE:
            raise FedapmError(
                f"{path}: {client} should be a public key (ecdsa-sha2-nistp384 …) or its fingerprint (SHA256:…), not "
                f"{shown(value)}."
            )
        if key in keys.values():
            raise FedapmError(f"{path} gives {client} the key of another client; every client has a key of its own.")
        keys[client] = key
    return keys


def read_registry(path: Path, clients: Sequence[str]) -> dict[str, str]:
    """Read which key each client has.

    Args:
        path: A TOML file with a line for each client: its id, and its public key or the key's fingerprint.
        clients: The ids of all clients.

    Returns:
        The fingerprint of each client's key.

    Raises:
        FedapmError: If the file is malformed, lacks a client or gives two of them the same key.
    """
    keys = read_keys(path, clients)
    for client in clients:
        if client not in keys:
            raise FedapmError(f"{path} lacks client {client!r}; name the key of every client.")
    return keys
