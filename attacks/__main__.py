"""``python -m attacks [--quick] [--only NAME] [--jobs N] [--json FILE]``: attack, and print what became of it.

Started again after it was cut off, it goes on with the attacks that have not been made on this code.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from attacks._work import made_all
from attacks.registry import all_attacks
from attacks.tally import code_digest, held_before, table, write


def main() -> int:
    """Run the attacks; 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a cheap sample of each attack")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="attacks whose name holds this")
    parser.add_argument("--json", type=Path, default=Path("attack.json"), help="where the tallies are written")
    # some of them mostly wait
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1, help="attacks at a time")
    parser.add_argument("--again", action="store_true", help="also make what FILE says was made on this code")
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    asked = parser.parse_args()
    # on networks as small as these a second thread only waits
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [one for one in all_attacks() if not asked.only or any(part in one.name for part in asked.only)]
    if asked.list or not chosen:
        print("\n".join(one.name for one in all_attacks()))
        return 0 if asked.list else 2
    code = code_digest(asked.quick)
    tallies = {} if asked.again else held_before(asked.json, code)
    longest_first = sorted(chosen, key=lambda one: -one.minutes)
    names = [one.name for one in longest_first if one.name not in tallies]
    if known := len(chosen) - len(names):
        print(f"{known} attacks were made on this code before; --again repeats them.", file=sys.stderr)
    for tally in made_all(names, asked.quick, max(1, min(asked.jobs, len(names)))):
        tally.code = code
        tallies[tally.name] = tally
        # what is known is kept if the rest is cut off
        write(asked.json, list(tallies.values()))
    ended = [tallies[one.name] for one in chosen]
    print(table(ended))
    return 0 if all(tally.held for tally in ended) else 1


if __name__ == "__main__":
    sys.exit(main())
