"""Names of versions: which of a client's answers is meant, as server and client write it."""

from __future__ import annotations

import re

from fedapm.errors import FedapmError

FRESH = ""
"""The version of a client that has not been accepted yet: how it starts."""
VERSION = re.compile(r"(\d{6,})-([0-9a-f]{12})")


def version_id(round: int, token: str) -> str:
    """The name of the state that an answer leaves: its round, and the announcement it answers."""
    return f"{round:06d}-{token}"


def round_of(version: str) -> int:
    """The round of a version; 0 for a fresh start."""
    found = VERSION.fullmatch(version)
    if found is None and version != FRESH:
        raise FedapmError(f"{version!r} is not the name of a version.")
    return int(found[1]) if found is not None else 0
