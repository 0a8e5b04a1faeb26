"""summary.csv: one line for each model of each run of a study, from which every page can be made again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from fedapm.report.study.rows import read_rows, write_rows

UNSPLIT = "unsplit"
"""The split of methods that take none; they stand beside those with any split."""


@dataclass(frozen=True)
class Line:
    """One model of one run after its last round; None where there is no such number."""

    case: str
    title: str
    data: str
    """The data set's name, by which published numbers are found."""
    cohort: float
    split: str
    """``chosen``, ``paper`` or ``unsplit``."""
    method: str
    label: str
    view: str
    seed: int
    rounds: int
    status: str
    """``complete``, ``diverged``, ``untuned`` where every trial diverged, or what the run stopped with."""
    accuracy: float | None
    f1: float | None
    auc: float | None
    worst10: float | None
    """The mean accuracy of the worst tenth of the clients."""
    train_loss: float | None
    test_loss: float | None
    drift: float | None
    bytes: float | None
    """All that was sent, up and down."""
    cpu_seconds: float | None
    """Processor time of the rounds."""
    rival: str
    """The best rival: of all methods but FedAPM's own, with any split, the one with the highest mean accuracy."""
    level: float | None
    """The rival's accuracy after its last round in the same seed; like everything on the way to it, before the closing
    phase."""
    rounds_to_level: int | None
    bytes_to_level: float | None
    cpu_to_level: float | None
    fedalt_level: float | None
    """FedAlt's accuracy after its last round in the same seed, with the same split."""
    rounds_to_fedalt: int | None
    best_accuracy: float | None
    """Of any round, picked with test data, as published scores are."""
    personal: str
    """The patterns of personal parameters where the split was chosen."""
    settings: str
    """What the search chose, as ``key=value``; in the line of the first seed, as it is the same for all."""

    @classmethod
    def without_numbers(
        cls, case: str, title: str, cohort: float, split: str, method: str, label: str, seed: int
    ) -> Line:
        """The line of a run that never began, because every trial of its method diverged."""
        about = {"case": case, "title": title, "cohort": cohort, "split": split, "method": method, "label": label}
        known = about | {"seed": seed, "rounds": 0, "status": "untuned"}
        rest = {name: "" if name in _TEXTS else None for name in _NAMES if name not in known}
        return cls(**known, **rest)  # type: ignore[arg-type]

    @property
    def counts(self) -> bool:
        """Whether the run went through to its end."""
        return self.status == "complete"


_NAMES = [field.name for field in fields(Line)]
_TEXTS = {"case", "title", "data", "split", "method", "label", "view", "status", "rival", "personal", "settings"}


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Write a summary."""
    write_rows(path, Line, lines)


def read_lines(path: Path) -> list[Line]:
    """Read a summary.

    Raises:
        FedapmError: Where it is missing, or is not a summary of a study; with the line.
    """
    return read_rows(path, Line, "the summary of a study")
