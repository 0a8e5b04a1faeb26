"""split.json: what a search of the split was asked, what it has found so far, and what it chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedapm.core.candidates import SplitCandidate
from fedapm.errors import FedapmError
from fedapm.report.split.search import SplitRow, SplitSearch, read_search
from fedapm.runs.config import changed_settings
from fedapm.runs.files import read_json, write_json
from fedapm.runs.folder import tidy
from fedapm.runs.layout import SPLIT_INFO
from fedapm.runs.schema import SplitInfo, check
from fedapm.tuning.split.ladder import Rung
from fedapm.tuning.split.scores import Score
from fedapm.version import __version__


class SearchRecord:
    """The file of one search, written again after every run.

    Args:
        folder: The folder of the search.
        arguments: How it is done.
        settings: The settings of all candidates.
        candidates: What is tried.
        rungs: How long each is trained.

    Raises:
        FedapmError: Where the folder was begun with other arguments.
    """

    def __init__(
        self,
        folder: Path,
        arguments: Mapping[str, Any],
        settings: Mapping[str, Any],
        candidates: Sequence[SplitCandidate],
        rungs: Sequence[Rung],
    ) -> None:
        self.folder = folder
        self.content: dict[str, Any] = {
            "status": "running",
            "fedapm": __version__,
            "arguments": dict(arguments),
            "settings": dict(settings),
            "rungs": [_plain(asdict(rung)) for rung in rungs],
            "candidates": [_plain(asdict(candidate)) for candidate in candidates],
        }
        self.scores: dict[tuple[int, int, int], Score] = {}
        if (folder / SPLIT_INFO).is_file():
            old = read_json(folder / SPLIT_INFO)
            self._check_same(old)
            tidy(folder)
            for row in old.get("scores", ()):
                self.scores[row["candidate"], row["rounds"], row["seed"]] = Score.from_dict(row)

    def add(self, candidate: int, rounds: int, seed: int, score: Score) -> None:
        """Write down how a run stands."""
        self.scores[candidate, rounds, seed] = score
        self.write()

    def write(self, **more: Any) -> None:
        """Write the file."""
        rows = [
            {"candidate": candidate, "rounds": rounds, "seed": seed, **score.as_dict()}
            for (candidate, rounds, seed), score in self.scores.items()
        ]
        write_json(self.folder / SPLIT_INFO, self.content | more | {"scores": rows})

    def finish(self, rows: Sequence[SplitRow], chosen: SplitRow, advice: Sequence[str]) -> SplitSearch:
        """Write down what was chosen, and read it back."""
        self.write(
            status="complete",
            chosen={"name": chosen.name} | chosen.patterns,
            advice=list(advice),
            rows=[_plain(asdict(row)) for row in rows],
        )
        return read_search(self.folder)

    def _check_same(self, old: Mapping[str, Any]) -> None:
        before = old.get("arguments", {})
        now = self.content["arguments"]
        changed = [f"{name} was {before.get(name)}" for name in now if before.get(name) != now[name]]
        changed += changed_settings(old.get("settings", {}), self.content["settings"])
        if not changed and old.get("candidates") != self.content["candidates"]:
            changed = ["the network"]
        if changed:
            raise FedapmError(
                f"{self.folder} was begun with other arguments ({', '.join(dict.fromkeys(changed))}); continue with "
                "the same ones or use another folder."
            )


def recorded_choice(folder: Path) -> dict[str, list[str]] | None:
    """The patterns that a finished search chose, as settings of the network; None where there is none."""
    if not (folder / SPLIT_INFO).is_file():
        return None
    content = read_json(folder / SPLIT_INFO)
    if content.get("status") != "complete":
        return None
    check(SplitInfo, content, str(folder / SPLIT_INFO))
    chosen = content.get("chosen", {})
    return {key: [str(pattern) for pattern in chosen[key]] for key in ("personal", "shared") if key in chosen}


def _plain(value: Any) -> Any:
    """As JSON gives it back, so that what was written can be compared."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
