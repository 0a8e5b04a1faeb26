"""The results of a search, and the file of tuned settings: written by tuning, read by comparisons."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fedapm.algorithms import METHODS, PRESETS
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments.settings import Tables, read_toml
from fedapm.runs.files import write_atomic
from fedapm.runs.layout import TUNE_INFO, TUNED
from fedapm.tuning.method_search import MethodSearch
from fedapm.tuning.options import Options
from fedapm.tuning.study import Row, finite

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SearchResult:
    """The result of one method's search."""

    name: str
    label: str
    complete: int
    pruned: int
    diverged: int
    best: float | None
    """The score of the best trial; None where every trial diverged."""
    default: float | None
    """The score of the settings before the search."""
    number: int | None
    """Which trial was best."""
    settings: Mapping[str, Any]
    """Its settings, as ``table.key`` to value."""

    @property
    def trials(self) -> int:
        """How many trials were used."""
        return self.complete + self.pruned + self.diverged

    def as_dict(self) -> dict[str, Any]:
        """The result as tune.json keeps it."""
        return asdict(self) | {"trials": self.trials}


@dataclass(frozen=True, repr=False)
class Tuned:
    """A finished search."""

    folder: Path
    options: Options
    methods: tuple[SearchResult, ...]
    tables: Tables
    """The best settings in the methods' own tables, a layer for a comparison."""
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """The trials of each method."""

    @property
    def trials(self) -> pd.DataFrame:
        """One row a trial: its method, its score on validation data, how it ended, and what it set."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"method": name, "trial": row.number, "score": row.value, "state": row.state, **row.settings}
                for name, rows in self.rows.items()
                for row in rows
            ]
        )

    @property
    def leaderboard(self) -> pd.DataFrame:
        """One row a method, the best first: its best score, the score before the search, and what was best."""
        import pandas as pd

        found = [
            {"method": r.name, "score": r.best, "before": r.default, "trials": r.trials, **r.settings}
            for r in self.methods
        ]
        return pd.DataFrame(found).set_index("method").sort_values("score", ascending=False)

    def __repr__(self) -> str:
        best = ", ".join(f"{r.label} {self.options.text(r.best)}" for r in self.methods)
        return f"Tuned({best}; {self.options.metric} on validation data)"

    @property
    def path(self) -> Path:
        """The file of tuned settings."""
        return self.folder / TUNED


def best_trial(search: MethodSearch, rows: Sequence[Row]) -> SearchResult:
    """The best of a method's trials that were run to their end; the earlier one where two are equal."""
    counts = {state: sum(row.state == state for row in rows) for state in ("complete", "pruned", "diverged")}
    ended = [row for row in rows if row.state == "complete" and row.value is not None]
    best = max(ended, key=lambda row: (row.value, -row.number), default=None)
    first = next((row.value for row in ended if row.number == 0), None)
    return SearchResult(
        search.name,
        search.label,
        **counts,
        best=finite(best.value) if best is not None else None,
        default=finite(first),
        number=best.number if best is not None else None,
        settings=best.settings if best is not None else {},
    )


def write_tuned(
    folder: Path, options: Options, searches: Sequence[MethodSearch], results: Sequence[SearchResult]
) -> Tables:
    """Write the tuned settings, with a comment that says how they were chosen.

    Args:
        folder: The folder of the search.
        options: How it was done.
        searches: The methods that were searched.
        results: Their results, in the same order.

    Returns:
        The tables of the file.
    """
    tables: Tables = {"engine": {"units": searches[0].units}}
    for search, result in zip(searches, results, strict=True):
        if result.number is not None:
            tables |= search.tuned_tables(result.settings)
    seeds = ", ".join(map(str, options.seeds))
    what = f"search {'; '.join(options.search)}" if options.search else f"space {options.space_name}"
    lines = [
        "Settings of the best trials of fedapm tune, for: fedapm compare --tuned",
        f"Up to {options.trials} trials of each method, {options.rounds} rounds, seeds {seeds}, {what},",
        f"sampler {options.chosen_sampler}, pruner {options.pruner}.",
        f"Chosen by the client mean of {options.metric} on validation data at the {options.select} round; no test data",
        "was used.",
    ]
    for result in results:
        counts = f"{result.trials} trials ({result.pruned} pruned, {result.diverged} diverged)"
        best = (
            f"trial {result.number}, {options.text(result.best)}; before the search {options.text(result.default)}"
            if result.number is not None
            else "every trial diverged, nothing was chosen"
        )
        lines.append(f"{result.name}: {counts}, {best}")
    head = "".join(f"# {line}\n" for line in lines)
    write_atomic(folder / TUNED, f"{head}\n{tomli_w.dumps(tables)}")
    return tables


def load_tuned(path: Path) -> Tables:
    """Read tuned settings, a layer for a comparison.

    Args:
        path: A folder of ``fedapm tune``, or a file as it writes it.

    Raises:
        FedapmError: Where there is no such file, or it holds something else.
    """
    file = tuned_file(path)
    tables = read_toml(file)
    known = {*METHODS, *PRESETS, "engine"}
    for name, table in tables.items():
        if name not in known:
            raise FedapmError(f"{file}: [{name}] is no method; {did_you_mean(name, known)}")
        if not isinstance(table, dict) or (name == "engine" and {*table} - {"units"}):
            raise FedapmError(f"{file}: {name!r} is not as fedapm tune writes it.")
    return tables


def tuned_file(path: Path) -> Path:
    """The file of tuned settings that a folder or a file means."""
    file = path / TUNED if path.is_dir() else path
    if file.is_file():
        return file
    if path.is_dir() and (path / TUNE_INFO).is_file():
        raise FedapmError(f"the search in {path} is not finished; continue it with the same fedapm tune command.")
    raise FedapmError(f"{file} does not exist; fedapm tune writes it.")


def tuned_layer(path: Path, methods: Sequence[str]) -> tuple[Tables, dict[str, Any]]:
    """The tuned settings of some methods.

    Args:
        path: A folder of ``fedapm tune``, or a file as it writes it.
        methods: The methods that are compared, each of which must be among the tuned ones.

    Returns:
        A layer of settings for a comparison, and what compare.json keeps of where it comes from.
    """
    file, tables = tuned_file(path), load_tuned(path)
    missing = [name for name in methods if name not in tables]
    if missing:
        tuned = ", ".join(name for name in tables if name != "engine") or "none"
        raise FedapmError(f"{file} has no settings for {', '.join(missing)}, only for: {tuned}; tune every method.")
    layer = {name: table for name, table in tables.items() if name in methods or name == "engine"}
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return layer, {"file": str(path), "sha256": digest, "methods": list(methods)}
