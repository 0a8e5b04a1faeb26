"""`fedapm compare` with one worker and with as many as there are processors, in turn: wall and processor seconds.

    python benchmarks/side_by_side.py [--quick] [--turns N] [--rounds N] [--json FILE]

The whole command is measured, from its start to the report. Records must be the same.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine

from fedapm.runs.files import write_json

RESULTS = Path(__file__).parent / "results" / "side_by_side.json"
METHODS, SEEDS, ROUNDS = "fedapm,fedalt,fedavg,fedprox", "0,1,2", 60
LIMIT = 0.6


def command(workers: int, rounds: int, seeds: str, out: Path) -> list[str]:
    """The comparison."""
    words = ["compare", "--data", "digits", "--methods", METHODS, "--seeds", seeds, "--rounds", str(rounds)]
    return [sys.executable, "-m", "fedapm", *words, "--workers", str(workers), "--out", str(out)]


def timed(words: list[str]) -> dict[str, float]:
    """What a command takes, with the processes that it starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {done.stderr.strip().splitlines()[-1]}")
    return {"wall": wall, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def records(folder: Path) -> dict[str, bytes]:
    """The rounds of every run."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("rounds.jsonl")}


def measure(workers: list[int], turns: int, rounds: int, seeds: str) -> dict[int, list[dict[str, float]]]:
    """Every number of workers in turn, so many times."""
    found: dict[int, list[dict[str, float]]] = {count: [] for count in workers}
    expected: dict[str, bytes] | None = None
    for turn in range(turns):
        # nobody is always the first
        for count in workers if turn % 2 == 0 else workers[::-1]:
            with tempfile.TemporaryDirectory(prefix="fedapm-side-by-side-") as place:
                found[count].append(timed(command(count, rounds, seeds, Path(place) / "out")))
                there = records(Path(place) / "out")
            expected = expected or there
            if there != expected:
                raise SystemExit(f"with {count} workers the records are others, so the time would mean nothing.")
            print(f"{count} at a time: wall {found[count][-1]['wall']:.1f} s, CPU {found[count][-1]['cpu']:.1f} s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, one turn: shows that it works, not more")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seeds", default=SEEDS)
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    machine.warn_if_busy()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    many = min(machine.cores(), 2 if machine.cores() < 4 else 4)
    turns, rounds, seeds = (1, 2, "0") if given.quick else (given.turns, given.rounds, given.seeds)
    about = machine.about()
    found = measure([1, many], turns, rounds, seeds)
    rows: list[dict[str, Any]] = [
        {
            "workers": count,
            **{
                key: {"best": min(r[key] for r in runs), "median": statistics.median(r[key] for r in runs)}
                for key in ("wall", "cpu")
            },
        }
        for count, runs in found.items()
    ]
    ratios = {key: rows[-1]["wall"][key] / rows[0]["wall"][key] for key in ("best", "median")}
    print(f"wall, {many} at a time / one after the other: best {ratios['best']:.3f}, median {ratios['median']:.3f}")
    print(f"at most {LIMIT:g}: {'met' if ratios['best'] <= LIMIT else 'MISSED'}")
    what = {"methods": METHODS, "seeds": seeds, "rounds": rounds, "turns": turns, "limit": LIMIT}
    load = round(os.getloadavg()[0], 2)
    write_json(
        given.json,
        {"machine": about, "load_after": load, "quick": given.quick, **what, "rows": rows, "ratios": ratios},
    )
    print(f"written: {given.json}")


if __name__ == "__main__":
    main()
