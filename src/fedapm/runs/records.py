"""Run folders: what a run leaves behind, written as it goes and read back by reports.

docs/reference/run-folder.md describes every file and field.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.runs.files import read_json, write_atomic, write_json
from fedapm.runs.layout import CONFIG, INFO, ROUNDS, SPLIT, UNSEEN


class JsonLines:
    """A file of one JSON object a line that can be cut back to a round and continued."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one line and hand it to the operating system."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))
            file.flush()
            os.fsync(file.fileno())

    def rewind(self, last_round: int) -> None:
        """Forget what comes after a round, and a line that was cut off while it was written."""
        self._write(row for row in self if row["round"] <= last_round)

    def amend(self, row: Mapping[str, Any]) -> None:
        """Write the line of a round again."""
        self._write(row if old["round"] == row["round"] else old for old in list(self))

    def _write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        write_atomic(self.path, "".join(map(_line, rows)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows; a last line without its end is left out, any other bad line is an error."""
        if not self.path.is_file():
            return
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                row = json.loads(line)
                row["round"]
            except (ValueError, TypeError, KeyError):
                raise FedapmError(f"{self.path}, line {number}, is not a record of a round.") from None
            yield row


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    path: Path
    info: dict[str, Any]
    rounds: list[dict[str, Any]]
    config: str

    @property
    def label(self) -> str:
        """The method's name as people write it."""
        return str(self.info.get("label", self.info["method"]))

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.info["seed"])

    @property
    def complete(self) -> bool:
        """Whether the run went through to its last round."""
        return self.info.get("status") == "complete"

    @property
    def diverged(self) -> bool:
        """Whether the run ended because no client had a finite result any more."""
        return self.info.get("status") == "diverged"

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        """The rounds in which models were evaluated."""
        return [row for row in self.rounds if row.get("evaluations")]


def unseen_clients(run: Run) -> list[dict[str, Any]]:
    """The clients that a run held out, with their scores before and after; empty where it held none out."""
    path = run.path / UNSEEN
    return list(read_json(path).get("clients", [])) if path.is_file() else []


def is_run(path: Path) -> bool:
    """Whether a folder holds a run."""
    return (path / INFO).is_file()


def load_run(path: Path) -> Run:
    """Read one run folder."""
    if not is_run(path):
        raise FedapmError(f"{path} is not a run folder: it has no {INFO}.")
    info = read_json(path / INFO)
    for field in ("method", "seed", "status", "clients"):
        if field not in info:
            raise FedapmError(f"{path / INFO} lacks the field {field!r}.")
    config = path / CONFIG
    return Run(path, info, list(JsonLines(path / ROUNDS)), config.read_text("utf-8") if config.is_file() else "")


def find_runs(folder: Path) -> list[Run]:
    """Every run in a folder or below it, in the order of their paths; not those of the search of a run's split."""
    if not folder.is_dir():
        raise FedapmError(f"{folder} is not a folder.")
    found = {p.parent for p in folder.rglob(INFO)}
    searched = {path for path in found if any(up.name == SPLIT and up.parent in found for up in path.parents)}
    paths = sorted(found - searched)
    if not paths:
        raise FedapmError(f"{folder} holds no run: no {INFO} in it or below it.")
    return [load_run(path) for path in paths]


def write_info(path: Path, info: dict[str, Any]) -> None:
    """Write or replace a run's description."""
    write_json(path / INFO, info)
