"""How a round and the memory grow with the number of clients and with the size of a cohort.

    python benchmarks/scale.py [--quick] [--json FILE]

FedAPM. Tiny clients are trained side by side, 100 of a population that grows; clients with the CIFAR10 network two at a
time. Every client has a memory of its own before the first round, as if all had taken part before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import machine
from contenders import ONE_THREAD

from fedapm.runs.files import write_json

HERE = Path(__file__).parent
COHORT = 100
FEW = {"samples": 10, "batch": 10}
"""So few pictures that a round is about the clients' memories, not about training."""

Case = dict[str, Any]


def cases(quick: bool) -> list[Case]:
    """What is run, each in its own process."""
    populations = [1_000] if quick else [100, 1_000, 10_000, 100_000]
    cohorts = [10, 100] if quick else [10, 30, 100, 300, 1_000]
    many = 100 if quick else 2_000
    count = 5 if quick else 20
    tiny = {"kind": "tiny", "rounds": count}
    found = [
        tiny | {"population": population, "cohorts": [COHORT], "store": store}
        for population in populations
        for store in ("table", "disk")
    ]
    found.append(tiny | {"population": 1_000, "cohorts": cohorts, "store": "table"})
    cnn = {"kind": "cnn", "population": many, "cohorts": [2], "rounds": count, "change": FEW}
    return found + [cnn | {"store": store} for store in ("memory", "disk")]


def run(case: Case) -> dict[str, Any]:
    """One case in a process of its own."""
    command = [sys.executable, str(HERE / "scale_case.py"), json.dumps(case)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | ONE_THREAD)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def show(found: dict[str, Any]) -> None:
    """Lines of one case."""
    setting_up = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found["setting_up"].items())
    for one in found["rounds"]:
        print(
            f"{found['kind']:6}{found['store']:8}{found['population']:8}{one['cohort']:8}"
            f"{one['wall']['best'] * 1e3:12.1f}{one['wall']['median'] * 1e3:10.1f}{one['cpu']['best'] * 1e3:12.1f}"
            f"{found['prepared_mib']:12.0f}{found['peak_mib']:10.0f}{found['disk_mib']:10.0f}   {setting_up}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small populations: shows that it works, not more")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "scale.json")
    given = parser.parse_args()
    machine.warn_if_busy()
    about = machine.about()
    print(
        f"{'net':6}{'store':8}{'clients':>8}{'cohort':>8}{'round, ms':>12}{'median':>10}{'CPU, ms':>12}"
        f"{'data, MiB':>12}{'peak':>10}{'on disk':>10}   setting up, s"
    )
    results = []
    for case in cases(given.quick):
        results.append(run(case))
        show(results[-1])
    write_json(given.json, {"machine": about, "quick": given.quick, "cohort": COHORT, "cases": results})
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
