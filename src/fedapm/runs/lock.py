"""Whether a server is at work in a run folder. The lock goes with its process, however that ends."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from fedapm.runs.layout import LOCK


def lock_of(out: Path) -> FileLock:
    """The lock that the server of a run holds; it lies beside the folder, which may not be there yet."""
    return FileLock(out.with_name(LOCK.format(name=out.name)), timeout=0)


def at_work(out: Path) -> bool:
    """Whether a server on this machine works in a folder right now."""
    if not out.parent.is_dir():
        return False
    try:
        with lock_of(out):
            return False
    except Timeout:
        return True
