"""Real data for tests: the folder FEDAPM_DATA names, or the one beside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

PUBLISHED = {
    "cifar10": "cifar-10-batches-bin",
    "crisismmd": "CrisisMMD_v2.0",
    "tinyimagenet": "tiny-imagenet-200",
    "motionsense": "motionsense.npz",
    "spsw": "spsw.npz",
    "ravdess": "ravdess.npz",
}
"""What a data root holds when a data set is there."""


def unpacked(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root that holds a real data set; the test is skipped, with the reason, where there is none."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    source = Path(os.environ.get("FEDAPM_DATA", beside))
    if (source / PUBLISHED[name]).exists():
        return source
    if not (source / "read.py").is_file():
        pytest.skip(f"no {name} here: {source} has neither {PUBLISHED[name]} nor read.py (set FEDAPM_DATA)")
    # workers of one session have folders side by side; whoever comes first unpacks for all
    base = tmp_path_factory.getbasetemp()
    together = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = together / f"real-{name}", together / f"real-{name}-is-here"
    with FileLock(together / f"real-{name}.lock"):
        if not done.exists():
            subprocess.run([sys.executable, source / "read.py", name, folder], check=True)
            done.touch()
    return folder
