"""Where a benchmark was run, and a warning where that is no place for one."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

BUSY = 0.3


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


def about() -> dict[str, Any]:
    """The machine and the versions, for the results."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()

    def field(name: str) -> str:
        return next((line.partition(":")[2].strip() for line in lines if line.partition("\t")[0] == name), "unknown")

    name, family = field("model name"), field("cpu family")
    # virtual machines often hide which processor it is, but not its generation
    model = name if family == "unknown" else f"{name} (family {family}, model {field('model')})"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": cores(),
        "memory_gib": round(memory, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_before": round(os.getloadavg()[0], 2),
    }


def warn_if_busy() -> None:
    """Say so where other programs are at work."""
    load = os.getloadavg()[0]
    if load > BUSY * cores():
        print(
            f"The load average is {load:.1f} on {cores()} cores: other work will show in the figures.", file=sys.stderr
        )
