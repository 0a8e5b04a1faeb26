"""Findings: a study and a course together, and theory.json, which keeps them beside a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import THEORY
from fedapm.theory.course import Course
from fedapm.theory.sentences import sentences
from fedapm.theory.study import Study


@dataclass(frozen=True)
class Findings:
    """What is known of a run, and what it means."""

    study: Study
    course: Course | None
    """The Lyapunov function over rounds, where it was recorded."""

    @property
    def sentences(self) -> list[str]:
        """The numbers in words."""
        return sentences(self.study, self.course)

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "study": self.study.as_dict(),
            "course": _course_dict(self.course) if self.course is not None else None,
            "sentences": self.sentences,
        }

    def write(self, folder: Path) -> Path:
        """Keep them in a run folder; the report of the run shows them.

        Args:
            folder: The run folder.

        Returns:
            The file that was written.
        """
        write_json(folder / THEORY, self.as_dict())
        return folder / THEORY


def read_study(folder: Path) -> Study | None:
    """The study in a run folder; None where there is none.

    Args:
        folder: The run folder.
    """
    path = folder / THEORY
    if not path.is_file():
        return None
    try:
        return Study.from_dict(read_json(path)["study"])
    except (KeyError, TypeError):
        raise FedapmError(f"{path} is not what fedapm theory writes now; give that command again.") from None


def _course_dict(course: Course) -> dict[str, Any]:
    rate = course.rate()
    return {
        "first": course.first,
        "rounds": course.steps,
        "falls": course.falls,
        "rho_changed": course.rho_changed,
        "lyapunov": list(course.values),
        "rate": rate if isinstance(rate, str) else asdict(rate),
    }
