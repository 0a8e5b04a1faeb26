"""Parts of one study that were run at different times or on different machines, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.report.study.lines import Line, read_lines, write_lines
from fedapm.report.study.sweeps import SweepLine, read_sweeps, write_sweeps
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import CARD, STUDY_INFO, SUMMARY, SWEEPS

Cell = tuple[str, float]
"""A case and a cohort: what is computed as a whole."""


@dataclass(frozen=True)
class StudySummary:
    """What is left of a study when its runs are gone."""

    lines: Sequence[Line]
    info: Mapping[str, Any]
    """What study.json holds."""
    cards: Sequence[Mapping[str, Any]]
    """The card of each part, with the cells that come from it as ``cells``."""
    swept: Sequence[SweepLine] = ()

    @property
    def cells(self) -> set[Cell]:
        """The cases and cohorts that were run."""
        return {(line.case, line.cohort) for line in self.lines}

    @property
    def card(self) -> dict[str, Any]:
        """What card.json holds."""
        return {"kind": "study", "parts": list(self.cards)}


def read_summary(folder: Path) -> StudySummary:
    """Read the folder of a study, or one that :func:`write_summary` wrote.

    Args:
        folder: Where ``summary.csv``, ``study.json`` and ``card.json`` are.

    Raises:
        FedapmError: A file is missing or damaged.
    """
    lines, info, card = read_lines(folder / SUMMARY), read_json(folder / STUDY_INFO), read_json(folder / CARD)
    whole = StudySummary(lines, info, ())
    cards = card.get("parts") or [{**card, "cells": [list(cell) for cell in sorted(whole.cells)]}]
    return StudySummary(lines, info, cards, read_sweeps(folder / SWEEPS))


def write_summary(folder: Path, summary: StudySummary) -> None:
    """Write ``summary.csv``, ``study.json``, ``card.json`` and, where something was varied, ``sweeps.csv``.

    Args:
        folder: Where to.
        summary: What they should hold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / SUMMARY, summary.lines)
    write_json(folder / STUDY_INFO, dict(summary.info))
    write_json(folder / CARD, summary.card)
    if summary.swept:
        write_sweeps(folder / SWEEPS, summary.swept)


def merge(parts: Sequence[StudySummary]) -> StudySummary:
    """Put parts together; of a case and a cohort that several have, the last one counts.

    Cases are in the order of the last part, and what was planned for a case is what its part says.

    Args:
        parts: The parts, one at least.

    Raises:
        FedapmError: The cohorts of a case were run with different plans, so that they are not one table.
    """
    owner = {cell: part for part in parts for cell in part.cells}
    cases: dict[str, Any] = dict(parts[-1].info["cases"])
    planned: dict[str, StudySummary] = {}
    for (name, _), part in owner.items():
        first = planned.setdefault(name, part)
        if first.info["cases"][name]["plan"] != part.info["cases"][name]["plan"]:
            raise FedapmError(
                f"the cohorts of {name} were run with different plans; run all of them with one study file."
            )
        cases[name] = first.info["cases"][name]
    order = {name: place for place, name in enumerate(cases)}
    lines = [line for part in parts for line in part.lines if owner[line.case, line.cohort] is part]
    # a stable sort: methods and seeds stay as they were
    lines.sort(key=lambda line: (order[line.case], -line.cohort))
    cards = [
        {**card, "cells": cells}
        for part in parts
        for card in part.cards
        if (cells := [cell for cell in card["cells"] if owner[tuple(cell)] is part])
    ]
    swept = [line for part in parts for line in part.swept if owner[line.case, line.cohort] is part]
    swept.sort(key=lambda line: order[line.case])
    return StudySummary(lines, {**parts[-1].info, "cases": cases}, cards, swept)
