"""Tally: what became of everything that was tried, as a table for people and a file for programs."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import fedapm
from fedapm.runs.files import write_atomic


class Outcome(StrEnum):
    """How one try ended. Only the first two are good."""

    SURVIVED = "survived"
    """The end is the one that an untroubled run has."""
    REFUSED = "refused"
    """One line said what is wrong, and nothing was touched."""
    LOST = "lost"
    """Something that was finished is gone, or a folder can no longer be continued."""
    DIFFERING = "differing"
    """It ended, but not bit for bit as an untroubled run does."""
    TRACEBACK = "traceback"
    """A person would see Python's error instead of a sentence."""
    HANG = "hang"
    """It did not end in time."""


GOOD = (Outcome.SURVIVED, Outcome.REFUSED)
NOTICE = 60.0
"""Seconds after which is said how far an attack is."""


@dataclass
class Tally:
    """What became of the tries of one attack.

    Args:
        name: The attack.
        unit: What is tried: kills, crash points, inputs, messages.
    """

    name: str
    unit: str
    counts: Counter[Outcome] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """What happened in each try that did not end well, with what repeats it."""
    skipped: str | None = None
    """Why the attack could not be made here."""
    seconds: float = 0.0
    code: str = ""
    """Of what code it is; see :func:`code_digest`."""
    _told: float = field(default_factory=time.monotonic, repr=False, compare=False)

    def add(self, outcome: Outcome, what: str = "") -> None:
        """Count one try.

        Args:
            outcome: How it ended.
            what: What was tried and what happened; kept where it did not end well.
        """
        self.counts[outcome] += 1
        if time.monotonic() - self._told > NOTICE:
            self._told = time.monotonic()
            print(f"  {self.name}: {self.tried:,} {self.unit} so far", file=sys.stderr, flush=True)
        if outcome not in GOOD:
            self.failures.append(f"{outcome}: {what}")
            print(f"  {self.name}: {outcome}: {what}", file=sys.stderr, flush=True)

    @property
    def tried(self) -> int:
        """How many tries there were."""
        return self.counts.total()

    @property
    def held(self) -> bool:
        """Whether every try ended well."""
        return not self.failures

    def as_dict(self) -> dict[str, object]:
        """The tally as JSON holds it."""
        counts = {outcome.value: self.counts[outcome] for outcome in Outcome}
        rest = {"seconds": round(self.seconds, 1), "skipped": self.skipped, "failures": self.failures}
        return {"attack": self.name, "unit": self.unit, "tried": self.tried} | counts | rest | {"code": self.code}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Tally:
        """The tally that JSON holds."""
        counts = Counter({outcome: found[outcome.value] for outcome in Outcome})
        rest = {key: found[key] for key in ("unit", "failures", "skipped", "seconds", "code")}
        return cls(name=found["attack"], counts=counts, **rest)


COLUMNS = ("attack", "unit", "tried", "survived", "refused", "lost", "differing", "tracebacks", "hangs", "seconds")


def table(tallies: Sequence[Tally]) -> str:
    """One line an attack, and below the sum of each unit."""
    units = list(dict.fromkeys(tally.unit for tally in tallies))
    sums = [_sum(unit, [tally for tally in tallies if tally.unit == unit]) for unit in units]
    rows = [COLUMNS, *map(_row, tallies), *map(_row, sums)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(COLUMNS))]
    lines = ["  ".join(_cell(k, text, widths[k]) for k, text in enumerate(row)).rstrip() for row in rows]
    rule = "-" * max(map(len, lines))
    lines = [lines[0], rule, *lines[1 : 1 + len(tallies)], rule, *lines[1 + len(tallies) :]]
    notes = [f"{tally.name} was skipped: {tally.skipped}" for tally in tallies if tally.skipped]
    return "\n".join([*lines, *notes])


def write(path: Path, tallies: Sequence[Tally]) -> None:
    """Write all tallies, with what went wrong, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps([tally.as_dict() for tally in tallies], indent=2) + "\n")


def held_before(path: Path, code: str) -> dict[str, Tally]:
    """The attacks that a file says were made on this code and found nothing, by name."""
    try:
        found = [Tally.from_dict(one) for one in json.loads(path.read_text())]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {tally.name: tally for tally in found if tally.code == code and tally.held and not tally.skipped}


def code_digest(quick: bool) -> str:
    """A digest of the package, the attackers and how much they try: what was made on other code is made again."""
    total = hashlib.blake2b(str(quick).encode(), digest_size=8)
    for folder in (Path(fedapm.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            total.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return total.hexdigest()


def _sum(unit: str, tallies: Sequence[Tally]) -> Tally:
    total = Tally(f"all {unit}", unit, seconds=sum(tally.seconds for tally in tallies))
    for tally in tallies:
        total.counts += tally.counts
    return total


def _row(tally: Tally) -> tuple[str, ...]:
    counts = (f"{tally.counts[outcome]:,}" for outcome in Outcome)
    return (tally.name, tally.unit, f"{tally.tried:,}", *counts, f"{tally.seconds:,.0f}")


def _cell(column: int, text: str, width: int) -> str:
    return text.ljust(width) if column < 2 else text.rjust(width)
