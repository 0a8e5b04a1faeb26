"""``python -m attacks [--quick] [--only NAME] [--jobs N] [--json FILE]``: attack, and print what became of it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from attacks._work import made_all
from attacks.registry import all_attacks
from attacks.tally import Tally, table, write


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
    for tally in made_all([one.name for one in chosen], asked.quick, min(asked.jobs, len(chosen))):
        tallies.append(tally)
        # what is known is kept if the rest is cut off
        write(asked.json, tallies)
    print(table(tallies))
    return 0 if all(tally.held for tally in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
