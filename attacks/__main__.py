"""``python -m attacks [--quick] [--only NAME] [--jobs N] [--json FILE]``: attack, and print what became of it."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from attacks.registry import all_attacks
from attacks.tally import Outcome, Tally, table, write


def main() -> int:
    """Run the attacks; 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a cheap sample of each attack")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="attacks whose name holds this")
    parser.add_argument("--json", type=Path, default=Path("attack.json"), help="where the tallies are written")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="attacks at a time")
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    asked = parser.parse_args()
    chosen = [one for one in all_attacks() if not asked.only or any(part in one.name for part in asked.only)]
    if asked.list or not chosen:
        print("\n".join(one.name for one in all_attacks()))
        return 0 if asked.list else 2
    tallies: list[Tally] = []
    for tally in _made_all([one.name for one in chosen], asked.quick, min(asked.jobs, len(chosen))):
        tallies.append(tally)
        # what is known is kept if the rest is cut off
        write(asked.json, tallies)
    print(table(tallies))
    return 0 if all(tally.held for tally in tallies) else 1


def _made_all(names: Sequence[str], quick: bool, jobs: int) -> Iterator[Tally]:
    """The attacks in their order, so many at a time, each in a process that has seen no other attack."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        yield from pool.map(_made, names, [quick] * len(names))


def _made(name: str, quick: bool) -> Tally:
    one = next(one for one in all_attacks() if one.name == name)
    tally = Tally(one.name, one.unit)
    began = time.perf_counter()
    print(f"{one.name} ...", file=sys.stderr, flush=True)
    try:
        one.make(tally, quick)
    except Exception as error:  # an attacker that fails has shown nothing
        tally.add(Outcome.TRACEBACK, f"the attacker itself failed: {type(error).__name__}: {error}")
    tally.seconds = time.perf_counter() - began
    print(f"{one.name}: {tally.tried:,} {one.unit} in {tally.seconds:.0f} s", file=sys.stderr, flush=True)
    return tally


if __name__ == "__main__":
    sys.exit(main())
