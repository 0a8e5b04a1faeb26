"""``python -m attacks [--quick] [--only NAME] [--json FILE]``: attack, and print what became of it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from attacks.registry import Attack, all_attacks
from attacks.tally import Outcome, Tally, table, write


def main() -> int:
    """Run the attacks; 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a cheap sample of each attack")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="attacks whose name holds this")
    parser.add_argument("--json", type=Path, default=Path("attack.json"), help="where the tallies are written")
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    asked = parser.parse_args()
    chosen = [one for one in all_attacks() if not asked.only or any(part in one.name for part in asked.only)]
    if asked.list or not chosen:
        print("\n".join(one.name for one in all_attacks()))
        return 0 if asked.list else 2
    tallies = [_made(one, asked.quick) for one in chosen]
    write(asked.json, tallies)
    print(table(tallies))
    return 0 if all(tally.held for tally in tallies) else 1


def _made(one: Attack, quick: bool) -> Tally:
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
