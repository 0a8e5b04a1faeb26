"""Benchmark card: what was run, on what, for how long and with which result, so that it can be cited and run again."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from fedapm.report import filled_columns, summary_table
from fedapm.report.comparison.columns import Column, table_columns
from fedapm.report.comparison.series import all_series, group_runs
from fedapm.report.evaluated_on import evaluated_on
from fedapm.report.metrics import MetricInfo, metrics_of
from fedapm.report.numbers import in_scale_of, percent, plain
from fedapm.report.page import escape_markdown, fill
from fedapm.report.settings import flat_settings
from fedapm.runs import provenance
from fedapm.runs.files import write_atomic, write_json
from fedapm.runs.layout import CARD, CARD_TEXT, CONFIG, ENGINE, ROUNDS, SPLIT_INFO, SWEEP_INFO, TIMINGS, TUNE_INFO
from fedapm.runs.provenance import command_times, private, repeating
from fedapm.runs.records import JsonLines, Run, find_runs, is_run
from fedapm.runs.schema import EngineInfo, TimingLine, read
from fedapm.version import __version__

KINDS = {SWEEP_INFO: "sweep", TUNE_INFO: "tuning", SPLIT_INFO: "split"}
"""The file that a command leaves beside its runs, and what it makes of the folder."""
PLACES = ("data.root", "data.cache")
"""Settings that are paths on the user's disk."""
MOST_ROWS, MOST_VALUES = 60, 20
NAMES = {
    "run": "A run",
    "comparison": "A comparison",
    "sweep": "A sweep",
    "tuning": "A search for settings",
    "split": "A search of the split",
}
EVALUATED_ON = {"test": "test", "validation": "validation", "both": "test or validation"}


def write_card(folder: Path, command: str | None = None) -> Path:
    """Write ``card.json`` and ``card.md`` about every run in a folder and below it, and return the second."""
    content = card(folder, command)
    write_json(folder / CARD, content)
    write_atomic(folder / CARD_TEXT, as_markdown(content))
    return folder / CARD_TEXT


def card(folder: Path, command: str | None = None) -> dict[str, Any]:
    """What the card says, as plain JSON values."""
    runs = find_runs(folder)
    kind = _kind(folder, runs)
    settings = [flat_settings(run) for run in runs]
    shown = private(command) if command is not None else None
    return {
        "kind": kind,
        "command": shown,
        "rerun": repeating(shown) if shown is not None else None,
        "data": sorted({str(run.info.get("data")) for run in runs}),
        "clients": sorted({run.population for run in runs}),
        "evaluated_clients": sorted({len(run.info["clients"]) for run in runs}),
        "samples": _samples(runs),
        "judged_by": evaluated_on(runs),
        "methods": {str(run.info["method"]): run.label for run in runs},
        "seeds": sorted({run.seed for run in runs}),
        "rounds": sorted({int(run.info.get("rounds", 0)) for run in runs}),
        "runs": {"planned": len(runs)} | _counts(str(run.info["status"]) for run in runs),
        "metrics": [asdict(metric) for metric in metrics_of(runs)],
        "scores": _scores(runs) if kind not in ("tuning", "split", "experiment") else [],
        "parts": sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob(f"*/**/{CARD}")),
        "results": {"files": len(runs), "sha256": digest(folder)},
        "time": _time(folder, runs),
        "engines": _counts(_engine(run) for run in runs),
        "frozen": _frozen(runs),
        "hardware": provenance.hardware({str(table.get("engine.device", "cpu")) for table in settings}),
        "versions": _versions(runs, ["optuna"] if any(folder.rglob(TUNE_INFO)) else []),
        "settings": _settings(runs, settings),
    }


def as_markdown(card: Mapping[str, Any]) -> str:
    """The card as a page to read.

    Args:
        card: What :func:`card` returned or ``card.json`` holds.
    """
    rows, hardware = card["scores"], card["hardware"]
    memory = hardware["memory_bytes"]
    known = table_columns([MetricInfo.of(metric) for metric in card["metrics"]])
    return fill(
        "card.md.j2",
        card=card,
        kind=NAMES.get(card["kind"], "An experiment"),
        evaluated_on=EVALUATED_ON[card["judged_by"]],
        engines=[name for name in card["engines"] if name != "unknown"],
        columns=[column for column in known if any(column.field in row for row in rows)],
        seeds=max((len(row["seeds"]) for row in rows), default=0),
        machine={
            "processor": hardware["processor"],
            "cores": hardware["cores"],
            "memory": f"{memory / 2**30:.1f} GiB" if memory is not None else None,
            "graphics card": ", ".join(hardware.get("gpu", [])) or None,
            "system": hardware["system"],
            **card["versions"],
        },
        most_rows=MOST_ROWS,
        most_values=MOST_VALUES,
        digest=digest,
        score=_score,
        table_cell=_table_cell,
        either=_either,
        duration=_duration,
        size=_size,
        toml=_toml,
    )


def digest(folder: Path | str) -> str:
    """One sum over the results of every run in a folder; equal results give equal sums wherever the folder lies."""
    base = Path(folder)
    total = hashlib.sha256()
    for run in find_runs(base):
        content = (run.path / ROUNDS).read_bytes() if (run.path / ROUNDS).is_file() else b""
        total.update(f"{run.path.relative_to(base).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _kind(folder: Path, runs: Sequence[Run]) -> str:
    if is_run(folder):
        return "run"
    for name, kind in KINDS.items():
        if (folder / name).is_file():
            return kind
    flat_below = all(len(run.path.relative_to(folder).parts) == 2 for run in runs)
    return "comparison" if flat_below else "experiment"


def _counts(items: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(items).items()))


def _samples(runs: Sequence[Run]) -> dict[str, list[int]]:
    """How many samples all clients have together, as a list because runs may differ."""
    return {
        part: sorted({sum(int(client.get(part, 0)) for client in run.info["clients"]) for run in runs})
        for part in ("train", "test")
    }


def _scores(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The main numbers of each model; none for a model without a finished run."""
    rows = summary_table(runs)
    columns = filled_columns(rows)
    complete = {model.name: sum(r.complete for r in model.group.every_run) for model in all_series(group_runs(runs))}
    scores = []
    for row in rows:
        about = {"label": row.label, "method": row.method, "seeds": list(row.seeds), "complete": complete[row.label]}
        cells = {c.field: {"mean": row.cell(c).mean, "std": row.cell(c).std} for c in columns if row.cell(c).values}
        scores.append(about | {"whole": row.complete} | (cells if complete[row.label] else {}))
    return scores


def _frozen(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What is shared of networks with a frozen part, and what the whole network would be, in bytes of float32."""
    found = {}
    for run in runs:
        counts = run.info.get("parameters") or {}
        if counts.get("frozen"):
            personal = max(counts["personal"], default=0)
            whole = 4 * (counts["shared"] + personal + counts["frozen"])
            found[run.label] = {"label": run.label, "shared_bytes": 4 * counts["shared"], "network_bytes": whole}
    return list(found.values())


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _time(folder: Path, runs: Sequence[Run]) -> dict[str, Any]:
    rounds = math.fsum(
        float(row.get("seconds", 0.0)) for run in runs for row in JsonLines(run.path / TIMINGS, TimingLine)
    )
    recorded = command_times(folder)
    files = [path.stat().st_mtime for run in runs for path in (run.path / CONFIG, run.path / ROUNDS) if path.is_file()]
    wall = math.fsum(entry.wall_seconds for entry in recorded)
    return {
        "began": min(entry.began for entry in recorded) if recorded else _utc(min(files, default=0.0)),
        "ended": max(entry.ended for entry in recorded) if recorded else _utc(max(files, default=0.0)),
        "dates_from": "commands" if recorded else "files",
        "rounds_seconds": round(rounds, 3),
        "wall_seconds": round(wall, 3) if recorded else None,
        "processor_seconds": round(math.fsum(entry.processor_seconds for entry in recorded), 3) if recorded else None,
        "commands": len(recorded),
        # less than the rounds took by themselves means that a command was killed before it could note its time
        "whole": bool(recorded) and wall >= rounds,
    }


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _engine(run: Run) -> str:
    path = run.path / ENGINE
    return str(read(EngineInfo, path)["engine"]) if path.is_file() else "unknown"


def _versions(runs: Sequence[Run], more: Sequence[str]) -> dict[str, str]:
    """Installed versions, and for what the runs themselves recorded the versions they recorded."""
    versions = {"fedapm": __version__} | provenance.versions(more)
    for name in ("fedapm", "python", "torch"):
        recorded = sorted({str(v) for run in runs if (v := _recorded(run, name)) is not None})
        if recorded:
            versions[name] = ", ".join(recorded)
    return versions


def _recorded(run: Run, name: str) -> Any:
    return run.info.get("fedapm") if name == "fedapm" else (run.info.get("environment") or {}).get(name)


def _settings(runs: Sequence[Run], settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The settings all runs share, those that go with the method, and those that vary within one."""
    apart = {*PLACES, "engine.seed", "algorithm.name"}
    names = list(dict.fromkeys(name for table in settings for name in table if name not in apart))
    common: dict[str, Any] = {}
    by_method: dict[str, dict[str, Any]] = {str(run.info["method"]): {} for run in runs}
    varying: dict[str, list[Any]] = {}
    for name in names:
        pairs = zip(runs, settings, strict=True)
        given = [(str(run.info["method"]), table[name]) for run, table in pairs if name in table]
        each = {method: {_key(value) for of, value in given if of == method} for method, _ in given}
        if len(given) == len(runs) and len({_key(value) for _, value in given}) == 1:
            common[name] = given[0][1]
        elif all(len(values) == 1 for values in each.values()) and len(by_method) > 1:
            for method, value in given:
                by_method[method][name] = value
        else:
            distinct = {_key(value): value for _, value in given}
            varying[name] = sorted(distinct.values(), key=_order)
    by_method = {method: own for method, own in by_method.items() if own}
    return {"common": common, "by_method": by_method, "varying": varying}


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _order(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, int | float)
    return (0, float(value), "") if number else (1, 0.0, str(value))


def _score(cell: Mapping[str, float | None], column: Column) -> str:
    mean, std = cell["mean"], cell["std"]
    if mean is None:
        return "–"
    if column.percentage:
        return percent(mean) + (f" ± {percent(std)}" if std is not None else "")
    # what is the same in every seed, as bytes often are, has no spread to show
    return plain(mean) + (f" ± {in_scale_of(std, mean)}" if std else "")


def _table_cell(value: Any) -> str:
    return escape_markdown(value)


def _either(values: Sequence[int]) -> str:
    return " or ".join(f"{value:,}" for value in values)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _toml(settings: Mapping[str, Any]) -> str:
    """Settings by name as the tables of an experiment file."""
    tables: dict[str, Any] = {}
    for name, value in settings.items():
        *outer, last = name.split(".")
        inner = tables
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return tomli_w.dumps(tables).strip()
