"""Version ids: the name of a client's state after one of its replies, as server and client both write it."""

from __future__ import annotations

import re

from fedapm.errors import FedapmError

FRESH = ""
"""The version of a client without an accepted reply: its initial state."""
VERSION = re.compile(r"(\d{6,})-([0-9a-f]{12})")


def version_id(round: int, token: str) -> str:
    """The id of the state after a reply: its round, and the token of the announcement it answers."""
    return f"{round:06d}-{token}"


def round_of(version: str) -> int:
    """The round of a version; 0 for the initial state."""
    match = VERSION.fullmatch(version)
    if match is None and version != FRESH:
        raise FedapmError(f"{version!r} is not a version id.")
    return int(match[1]) if match is not None else 0
