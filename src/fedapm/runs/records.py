"""Run folders: what a run leaves behind, written as it goes and read back by reports.

docs/reference/run-folder.md describes every file and field.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.runs.files import naming, read_json, sync_folder, write_atomic, write_json
from fedapm.runs.layout import CLASSES, CONFIG, INFO, PRIVACY, ROUNDS, SPLIT, UNSEEN
from fedapm.runs.schema import ClassCounts, PrivacyInfo, RoundLine, RunInfo, UnseenInfo, check


class JsonLines:
    """A file of one JSON object a line that can be cut back to a round and continued.

    Args:
        path: The file.
        kind: What its lines hold, one of the forms in :mod:`fedapm.runs.schema`; any object with a round if not given.
    """

    def __init__(self, path: Path, kind: Any = None) -> None:
        self.path, self.kind = path, kind

    def append(self, row: Mapping[str, Any]) -> int:
        """Add one line and hand it to the operating system.

        Returns:
            How many bytes the file has now.
        """
        line = _line(row).encode()
        with naming(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self.path.exists()
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
        if is_new:
            sync_folder(self.path.parent)
        return size

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return self.path.stat().st_size if self.path.is_file() else 0

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
            where = f"{self.path}, line {number},"
            try:
                row = json.loads(line, parse_constant=_no_number)
                known = isinstance(row, dict) and type(row.get("round")) is int and row["round"] >= 0
            except (ValueError, RecursionError):
                known = False
            if not known:
                raise FedapmError(f"{where} is not a record of a round.")
            if self.kind is not None:
                check(self.kind, row, where)
            yield row


def _no_number(word: str) -> None:
    raise ValueError(word)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n"


def chained(digest: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """The running digest of records: of all rounds so far in one sum, which any changed or missing line changes.

    Args:
        digest: That of the rounds before; empty before the first.
        rows: The records that follow.
    """
    for row in rows:
        digest = hashlib.sha256(f"{digest}\n{_line(row)}".encode()).hexdigest()
    return digest


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
    def population(self) -> int:
        """How many clients there are; ``clients`` in its description are those that were evaluated."""
        return int(self.info.get("population", len(self.info["clients"])))

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
    if not path.is_file():
        return []
    content = read_json(path)
    check(UnseenInfo, content, str(path))
    return list(content["clients"])


def spent_by_site(run: Run) -> list[dict[str, Any]]:
    """What each client has spent after the last round, where a run protects single samples; else empty."""
    path = run.path / PRIVACY
    if not path.is_file():
        return []
    content = read_json(path)
    check(PrivacyInfo, content, str(path))
    current = bool(run.rounds) and content["round"] == run.rounds[-1]["round"]
    return list(content["clients"]) if current else []


def class_counts(run: Run) -> dict[str, list[list[list[int]]]]:
    """How often each class was taken for each, by view and client; empty where that is not known of the last round."""
    path = run.path / CLASSES
    if not path.is_file():
        return {}
    content = read_json(path)
    check(ClassCounts, content, str(path))
    # a run that goes on is beyond the round it was counted after
    views: dict[str, list[list[list[int]]]] = content["views"]
    return views if run.rounds and content["round"] == run.rounds[-1]["round"] else {}


def is_run(path: Path) -> bool:
    """Whether a folder holds a run."""
    return (path / INFO).is_file()


def load_run(path: str | Path) -> Run:
    """Read one run folder."""
    path = Path(path)
    if not is_run(path):
        raise FedapmError(f"{path} is not a run folder: {_what_is_there(path)}.")
    info = read_json(path / INFO)
    for field in ("method", "seed", "status", "clients"):
        if field not in info:
            raise FedapmError(f"{path / INFO} lacks the field {field!r}.")
    check(RunInfo, info, str(path / INFO))
    rounds = list(JsonLines(path / ROUNDS, RoundLine))
    _check_rounds(path, info, [row["round"] for row in rounds])
    config = path / CONFIG
    try:
        text = config.read_text("utf-8") if config.is_file() else ""
    except UnicodeDecodeError as error:
        raise FedapmError(f"{config} is not valid TOML: {error}.") from None
    return Run(path, info, rounds, text)


def _what_is_there(path: Path) -> str:
    """What a path is that is no run folder; runs just below it are named, as those of a comparison."""
    if not path.exists():
        return "it does not exist"
    below = sorted(str(found.parent) for depth in ("*", "*/*") for found in path.glob(f"{depth}/{INFO}"))
    listed = f"{', '.join(below[:3])}{', …' * (len(below) > 3)}"
    return f"it has no {INFO}" + (f"; name one of the runs in it: {listed}" if below else "")


def _check_rounds(path: Path, info: Mapping[str, Any], rounds: Sequence[int]) -> None:
    """Refuse records with a gap or a round twice, and a complete run that lacks some."""
    last = info.get("finished", info.get("rounds"))
    lacks = info["status"] == "complete" and last is not None and len(rounds) != last + 1
    if [*rounds] != [*range(len(rounds))] or lacks:
        whole = f"rounds 0 to {last} of a complete run" if lacks else "one line for each round in order"
        raise FedapmError(f"{path / ROUNDS} does not hold {whole}; it was edited or damaged; run it again elsewhere.")


def find_runs(folder: str | Path) -> list[Run]:
    """Every run in a folder or below it, in the order of their paths; not those of the search of a run's split."""
    folder = Path(folder)
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
