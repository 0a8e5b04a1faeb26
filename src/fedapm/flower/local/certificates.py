"""Certificates and keys of a federation on one machine: an authority, the server's certificate, a key per node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

LIFETIME = timedelta(days=365)
HOSTS = ("localhost", "127.0.0.1")


def write_certificates(folder: Path, hosts: Sequence[str] = HOSTS) -> None:
    """Write an authority's certificate (ca.crt) and a server's, signed by it (server.pem, server.key).

    The authority's own key is not kept: nobody can sign a second certificate with it.

    Args:
        folder: Where the three files go.
        hosts: The names and addresses the server's certificate is good for.
    """
    authority = trustme.CA(path_length=0, organization_name="fedapm", organization_unit_name="local authority")
    expiry = datetime.now(UTC) + LIFETIME
    server = authority.issue_cert(*hosts, common_name=hosts[0], organization_name="fedapm", not_after=expiry)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(folder / "server.key", server.private_key_pem.bytes())
    _write(folder / "server.pem", b"".join(certificate.bytes() for certificate in server.cert_chain_pems))
    # last, because where it exists the other two are taken to exist too
    _write(folder / "ca.crt", authority.cert_pem.bytes())


def write_key(path: Path) -> None:
    """Write a node's private SSH key, and the public one beside it with the ending .pub."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(path.with_name(f"{path.name}.pub"), public + b"\n")
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
