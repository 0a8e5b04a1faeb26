"""A search of the split, read from its split.json, and its numbers in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.runs.files import read_json
from fedapm.runs.layout import SPLIT_INFO
from fedapm.runs.schema import SplitInfo, check


@dataclass(frozen=True)
class Gap:
    """A difference of means with its 95% interval; without one where there is nothing to estimate it from."""

    mean: float
    low: float | None
    high: float | None

    @property
    def clear(self) -> bool:
        """Whether it is above zero by more than chance."""
        return self.mean > 0 and (self.low is None or self.low > 0)

    @property
    def error(self) -> float:
        """The standard error, for which half of the interval's half stands; zero where there is none."""
        return 0.0 if self.low is None else (self.mean - self.low) / 2


@dataclass(frozen=True)
class SplitRow:
    """One candidate and how far it came."""

    name: str
    personal: tuple[str, ...]
    """The patterns of what is personal, or of what is shared where clients' networks differ."""
    shared: tuple[str, ...]
    share: float
    """The share of trained parameters that is personal."""
    verdict: str
    """``chosen``; ``as good`` and ``worse`` as the best on the last rung; ``dropped`` before it; or ``diverged``."""
    rounds: int
    """The rounds it was trained for."""
    score: float | None
    """The mean over clients and seeds after them."""
    behind: Gap | None
    """How far it was behind the best after as many rounds."""
    bytes: float
    """What a client sends and receives in a round."""
    history: tuple[tuple[int, float], ...]
    """Its score after each rung."""

    @property
    def patterns(self) -> dict[str, list[str]]:
        """Its patterns as the one setting of the network that makes a run use it."""
        return {"shared": list(self.shared)} if self.shared else {"personal": list(self.personal)}


@dataclass(frozen=True)
class SplitSearch:
    """A finished search."""

    metric: Mapping[str, Any]
    """The description of the metric that counts."""
    rows: tuple[SplitRow, ...]
    """Every candidate, from the fewest personal parameters to the most."""
    advice: tuple[str, ...]
    arguments: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def chosen(self) -> SplitRow:
        """The candidate to take."""
        return next(row for row in self.rows if row.verdict == "chosen")

    @property
    def assignment(self) -> str:
        """The chosen split as ``--set`` takes it."""
        ((key, patterns),) = self.chosen.patterns.items()
        return f"model.{key}={json.dumps(patterns, ensure_ascii=False)}"

    @property
    def title(self) -> str:
        """What the score is."""
        name = str(self.metric["title"])
        return f"Validation {name if name.isupper() else name.lower()}".replace("test ", "")


def read_search(folder: Path) -> SplitSearch:
    """Read the search in a folder.

    Raises:
        FedapmError: Where it is not finished.
    """
    content = read_json(folder / SPLIT_INFO)
    if content.get("status") != "complete":
        raise FedapmError(f"the search in {folder} is not finished; continue it with the same command.")
    try:
        arguments = content["arguments"]
        rows = tuple(_row(row) for row in content["rows"])
        if [row.verdict for row in rows].count("chosen") != 1:
            raise ValueError("chosen")
        found = SplitSearch(arguments["metric"], rows, tuple(content["advice"]), arguments, content["settings"])
    except (KeyError, TypeError, ValueError):
        raise FedapmError(f"{folder / SPLIT_INFO} is not the record of a search of the split.") from None
    check(SplitInfo, content, str(folder / SPLIT_INFO))
    return found


def _row(content: Mapping[str, Any]) -> SplitRow:
    read = {
        **content,
        "personal": tuple(content["personal"]),
        "shared": tuple(content["shared"]),
        "behind": Gap(**content["behind"]) if content["behind"] is not None else None,
        "history": tuple((int(rounds), float(score)) for rounds, score in content["history"]),
    }
    return SplitRow(**read)


def score_text(metric: Mapping[str, Any], value: float | None) -> str:
    """A score as people read it.

    Args:
        metric: The description of the metric.
        value: The score, if there is one.
    """
    if value is None:
        return "–"
    return f"{100 * value:.1f}%" if metric["unit"] == "%" else f"{value:.4g}"


def gap_text(metric: Mapping[str, Any], gap: Gap, unit: bool = True) -> tuple[str, str]:
    """A difference and its interval as people read them; the second is empty where there is none.

    Args:
        metric: The description of the metric.
        gap: The difference.
        unit: Whether to name the unit.
    """
    percent = metric["unit"] == "%"
    middle = _number(gap.mean, percent) + (" points" if percent and unit else "")
    if gap.low is None or gap.high is None:
        return middle, ""
    return middle, f"{_number(gap.low, percent)} to {_number(gap.high, percent)}"


def share_text(share: float) -> str:
    """A share of parameters: two digits where it is small."""
    return f"{share:.0%}" if share in (0, 1) else f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.4g}%"


def bytes_text(count: float) -> str:
    """What a client sends and receives in a round."""
    if count >= 1e6:
        return f"{count / 1e6:,.2f} MB"
    return f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count:.0f} B"


def _number(value: float, percent: bool) -> str:
    text = f"{100 * value:.1f}" if percent else f"{value:.3g}"
    return text.replace("-", "−") if float(text) else text.removeprefix("-")
