"""How long it takes to begin: processor seconds of the command line's help and of imports, each in a fresh process.

    python benchmarks/startup.py [--repeats N] [--json FILE]

The best of all repeats is what the code takes; the rest is what else the machine had to do.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

from machine import about, warn_if_busy

from fedapm.runs.files import write_json

HERE = Path(__file__).parent
CASES = {
    "python -c pass": ["-c", "pass"],
    "import fedapm": ["-c", "import fedapm"],
    "fedapm --version": ["-m", "fedapm", "--version"],
    "fedapm --help": ["-m", "fedapm", "--help"],
    "fedapm compare --help": ["-m", "fedapm", "compare", "--help"],
    "import torch": ["-c", "import torch"],
    "fedapm list methods": ["-m", "fedapm", "list", "methods"],
}


def seconds(arguments: list[str]) -> float:
    """User and system seconds of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "startup.json")
    given = parser.parse_args()
    warn_if_busy()
    machine = about()
    for arguments in CASES.values():
        seconds(arguments)  # files are in memory from now on, for all alike
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(given.repeats):
        for name, arguments in CASES.items():
            taken[name].append(round(seconds(arguments), 3))
    for name, all_ in taken.items():
        print(f"{name:24}{min(all_):6.2f} s")
    write_json(given.json, {"machine": machine, "quick": given.repeats < 5, "seconds": taken})
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
