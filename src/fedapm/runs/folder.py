"""Run folders: who may write to one."""

from __future__ import annotations

from pathlib import Path

from fedapm.errors import FedapmError
from fedapm.runs.records import is_run

MAY_CHANGE_ON_RESUME = {
    "data.root",
    "data.cache",
    "engine.workers",
    "engine.store",
    "engine.checkpoint_every",
    "engine.save_models",
}
"""Settings that a resumed run may change, because its results do not depend on them."""


def refuse_to_overwrite(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    if folder.exists() and not folder.is_dir():
        raise FedapmError(f"{folder} is a file; give a folder for the run.")
    if folder.is_dir() and any(folder.iterdir()):
        what = "already holds a run; continue it with --resume or" if is_run(folder) else "is not empty;"
        raise FedapmError(f"{folder} {what} choose another folder.")
