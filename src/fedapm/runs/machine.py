"""What runs were computed on and with: hardware, operating system and versions, and nothing that says whose it is."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")
"""The packages that results may depend on."""


def hardware(devices: Iterable[str] = ()) -> dict[str, Any]:
    """Processor, cores, memory, the graphics cards that were used, and the operating system."""
    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "system": _system(),
    }
    cards = sorted({name for device in devices if (name := _card(device)) is not None})
    return found | ({"gpu": cards} if cards else {})


def versions(more: Iterable[str] = ()) -> dict[str, str]:
    """Versions of Python and of the installed packages that matter, without importing any."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Hardware") and value.strip():
                return value.strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        if asked.stdout.strip():
            return asked.stdout.strip()
    return platform.processor() or platform.machine() or "unknown"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _system() -> str:
    """The system and its release; the distribution where it says its name."""
    kernel = f"{platform.system()} {platform.release()}".strip()
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except (OSError, KeyError, AttributeError):
        return kernel


def _card(device: str) -> str | None:
    if device == "cpu":
        return None
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return str(torch.cuda.get_device_name(torch.device(device)))
    return device
