"""Where data sets are published."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """A published file that can be downloaded and unpacked in the data root."""

    url: str
    checksum: str | None
    """As ``md5:…`` or ``sha256:…``; None where none is published."""
    holds: str
    """A file or folder that is in the root when the archive has been unpacked."""
    into: str = ""
    """The folder in the root in which it is unpacked; the root itself if empty."""


@dataclass(frozen=True)
class Origin:
    """Where a data set comes from and what must lie in the root."""

    page: str
    """The address where it is described."""
    licence: str
    layout: str
    """What the root holds when it is there, in a few words."""
    archives: tuple[Archive, ...] = ()
    by_hand: str = ""
    """What to fetch by hand and where to put it, where a licence or a form stands in the way."""
