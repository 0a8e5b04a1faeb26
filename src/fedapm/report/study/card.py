"""Cards of a study: the commands, versions, machines and hours, first of each part, then of all that is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedapm.runs import provenance
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import CARD
from fedapm.runs.provenance import command_times, private
from fedapm.version import __version__

HOURS = ("hours", "processor_hours")


def write_part_card(folder: Path, case: str, cohort: float, command: str | None = None) -> Path:
    """Write ``card.json`` of one case with one cohort, and return where it is.

    Args:
        folder: The folder of the part.
        case: The name of the case.
        cohort: The share of clients in a round.
        command: The command that finished it.
    """
    times = command_times(folder)
    content: dict[str, Any] = {
        "kind": "study",
        "command": private(command) if command is not None else None,
        "fedapm": __version__,
        "hours": round(sum(time.wall_seconds for time in times) / 3600, 4),
        "processor_hours": round(sum(time.processor_seconds for time in times) / 3600, 4),
        "hardware": provenance.hardware(),
        "versions": provenance.versions(["optuna"]),
        "cells": [[case, cohort]],
    }
    write_json(folder / CARD, content)
    return folder / CARD


def write_study_card(folder: Path, parts: Iterable[Path]) -> Path:
    """Write ``card.json`` of a study, and return where it is.

    Args:
        folder: The folder of the study.
        parts: The folders of its parts, in order; those that are not done have no card and are left out.
    """
    cards = [read_json(path / CARD) for path in parts if (path / CARD).is_file()]
    write_json(folder / CARD, {"kind": "study", "parts": together(cards)})
    return folder / CARD


def together(cards: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Cards of parts, those of one command on one machine with the same versions as one.

    Args:
        cards: The cards, in order.
    """
    found: list[dict[str, Any]] = []
    for card in cards:
        same = next((one for one in found if _origin(one) == _origin(card)), None)
        if same is None:
            found.append({**card, "cells": list(card["cells"])})
            continue
        same["cells"] += card["cells"]
        for key in HOURS:
            same[key] = round(same[key] + card[key], 4)
    return found


def _origin(card: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in card.items() if key not in (*HOURS, "cells")}
