"""The card of a study: the command, versions, machine and hours. Its parts have cards of their own in their reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapm.runs import provenance
from fedapm.runs.files import write_json
from fedapm.runs.layout import CARD
from fedapm.runs.provenance import command_times, private
from fedapm.version import __version__


def write_study_card(folder: Path, command: str | None = None) -> Path:
    """Write ``card.json`` of a study, and return where it is.

    Args:
        folder: The folder of the study.
        command: The command that was given.
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
    }
    write_json(folder / CARD, content)
    return folder / CARD
