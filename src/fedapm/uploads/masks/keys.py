"""MaskKey: a client's X25519 key of one run. Two clients make the same secret of their keys; nobody else can."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedapm.errors import FedapmError

LENGTH = 32
"""The bytes of a key, private or public."""


class MaskKey:
    """A client's key of one run.

    Args:
        private: Its 32 bytes; new ones from the operating system if not given.

    Raises:
        FedapmError: If they are not 32 bytes.
    """

    def __init__(self, private: bytes | None = None) -> None:
        if private is not None and len(private) != LENGTH:
            raise FedapmError(f"a mask key has {LENGTH} bytes, not {len(private)}.")
        self._key = X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)
        self._secrets: dict[bytes, bytes] = {}

    @property
    def private(self) -> bytes:
        """What only its client may know."""
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """What all clients must know."""
        return self._key.public_key().public_bytes_raw()

    def secret(self, other: bytes) -> bytes:
        """What this client and another one have in common.

        Args:
            other: The other's public key.

        Raises:
            FedapmError: If that is no key, or one with which everybody would have the same secret.
        """
        if other not in self._secrets:
            try:
                self._secrets[other] = self._key.exchange(X25519PublicKey.from_public_bytes(other))
            except ValueError:
                raise FedapmError("a mask key is none: nothing secret comes of it.") from None
        return self._secrets[other]
