"""SignedKey: a client's public mask key, signed by the key of its node, so that a server cannot swap it."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedapm.errors import FedapmError
from fedapm.flower.fields import items, text
from fedapm.flower.transport.keys import NONE, fingerprint
from fedapm.uploads.masks.keys import LENGTH

LONGEST = 1000
"""The most characters of a part of it."""


@dataclass(frozen=True)
class SignedKey:
    """A client's public mask key, and who vouches for it."""

    key: bytes
    node: str = ""
    """The public key of its node, as ssh writes it; empty where the node has none."""
    signature: bytes = b""

    def note(self) -> list[str]:
        """The key as JSON."""
        return [self.key.hex(), self.node, base64.b64encode(self.signature).decode()]

    @classmethod
    def read(cls, value: Any, client: str) -> SignedKey:
        """The inverse of :meth:`note`, for the key of a client.

        Raises:
            FedapmError: If it is none.
        """
        parts = [text(part, f"the mask key of client {client}", LONGEST) for part in items(value, "a mask key", 3)]
        try:
            key, node, signature = bytes.fromhex(parts[0]), parts[1], base64.b64decode(parts[2], validate=True)
        except (IndexError, ValueError, binascii.Error):
            raise FedapmError(f"the mask key of client {client} cannot be read.") from None
        if len(key) != LENGTH:
            raise FedapmError(f"the mask key of client {client} has {len(key)} bytes, not {LENGTH}.")
        return cls(key, node, signature)

    def signer(self, run: str, client: str) -> str:
        """The fingerprint of the node key that signed it for a client and a run; empty where nobody did.

        Raises:
            FedapmError: If it is signed, but not by this key or not for this.
        """
        if not self.signature:
            return NONE
        try:
            node = load_ssh_public_key(self.node.encode())
            if not isinstance(node, EllipticCurvePublicKey):
                raise ValueError
            node.verify(self.signature, _statement(run, client, self.key), ECDSA(SHA384()))
        except (ValueError, UnsupportedAlgorithm, InvalidSignature):
            raise FedapmError(f"the mask key of client {client} is not signed by the node key it comes with.") from None
        return fingerprint(self.node.encode())


def signed(key: bytes, run: str, client: str, node_key: Path | None) -> SignedKey:
    """A client's public mask key, signed by its node.

    Args:
        key: The public mask key.
        run: The run's id.
        client: The client's id.
        node_key: The private key that the SuperNode was started with; without it nothing is signed.

    Raises:
        FedapmError: If there is no such key.
    """
    if node_key is None:
        return SignedKey(key)
    try:
        private = load_ssh_private_key(node_key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FedapmError(
            f"--node-config: node-key = {node_key} is not a private key that can be read ({error})."
        ) from None
    if not isinstance(private, EllipticCurvePrivateKey):
        raise FedapmError(f"--node-config: node-key = {node_key} is not a key of the kind that SuperNodes have.")
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return SignedKey(key, public, private.sign(_statement(run, client, key), ECDSA(SHA384())))


def _statement(run: str, client: str, key: bytes) -> bytes:
    return b"\0".join([b"fedapm mask key 1", run.encode(), client.encode(), key])
