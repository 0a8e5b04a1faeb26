"""The benchmark card as a page to read: everything needed to cite a result and to run it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import tomli_w

from fedapm.report.comparison.columns import table_columns
from fedapm.report.metrics import MetricInfo
from fedapm.report.numbers import counted, in_scale_of, listed, percent, plain

MOST_ROWS = 60
MOST_VALUES = 20
NAMES = {"run": "A run", "comparison": "A comparison", "sweep": "A sweep", "tuning": "A search for settings"}


def as_markdown(card: Mapping[str, Any]) -> str:
    """The card in Markdown."""
    parts = [
        f"# Benchmark card: {_title(card)}",
        _about(card),
        *_results(card),
        *_parts(card["parts"]),
        *_command(card),
        *_digest(card),
        "## Time",
        _time(card["time"]),
        "## Machine and versions",
        _machine(card),
        "## Settings",
        *_settings(card["settings"]),
    ]
    return "\n\n".join(parts) + "\n"


def _title(card: Mapping[str, Any]) -> str:
    labels = list(card["methods"].values())
    who = listed(labels, 4) if len(labels) <= 4 else f"{len(labels)} methods"
    return f"{who} on {listed(list(card['data']))}"


def _about(card: Mapping[str, Any]) -> str:
    runs = card["runs"]
    seeds = [str(seed) for seed in card["seeds"]]
    clients, rounds = _either(card["clients"]), _either(card["rounds"])
    train, test = _either(card["samples"]["train"]), _either(card["samples"]["test"])
    judged = {"test": "test", "validation": "validation", "both": "test or validation"}[card["judged_by"]]
    status = [f"{count} {status}" for status, count in runs.items() if status != "planned"]
    engines = [name for name in card["engines"] if name != "unknown"]
    return (
        f"{NAMES.get(card['kind'], 'An experiment')} with fedapm {card['versions']['fedapm']} on "
        f"{listed(list(card['data']))}: {clients} clients with {train} training and {test} {judged} samples, "
        f"{rounds} rounds, {'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds, 20)}, "
        f"{'method' if len(card['methods']) == 1 else 'methods'} {listed(list(card['methods'].values()), 20)}. "
        f"{counted(runs['planned'], 'run')}: {', '.join(status)}."
        + (
            f" Clients were run by the {'engine' if len(engines) == 1 else 'engines'} {listed(engines)}."
            if engines
            else ""
        )
    )


def _results(card: Mapping[str, Any]) -> list[str]:
    rows: Sequence[Mapping[str, Any]] = card["scores"]
    if not rows:
        return []
    known = table_columns([MetricInfo.of(metric) for metric in card["metrics"]])
    columns = [column for column in known if any(column.field in row for row in rows)]
    heads = [column.title + (f", {column.unit}" if column.unit else "") for column in columns]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for row in rows[:MOST_ROWS]:
        cells = [_cell(row.get(column.field), column.percentage) for column in columns]
        name = _escaped(row["label"]) + ("" if row["whole"] else " (incomplete)" if row["complete"] else " (no result)")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    seeds = max(len(row["seeds"]) for row in rows)
    spread = f"; mean ± sample standard deviation over {seeds} seeds" if seeds > 1 else "; one seed"
    judged = {
        "test": "",
        "validation": " Every score is a validation score: no test data was used.",
        "both": " Some runs were judged by validation data and some by test data; their scores do not compare.",
    }[card["judged_by"]]
    more = f" {len(rows) - MOST_ROWS} more rows are in card.json." if len(rows) > MOST_ROWS else ""
    note = f"Means over clients after the last round, each client counting the same{spread}.{judged}{more}"
    return ["## Result", "\n".join(lines), note]


def _parts(parts: Sequence[str]) -> list[str]:
    """Where the results are if the folder holds several experiments."""
    if not parts:
        return []
    return ["## Parts", "\n".join(f"- [{part}]({quote(part)}/card.md)" for part in parts)]


def _cell(cell: Mapping[str, float | None] | None, percentage: bool) -> str:
    if cell is None or cell["mean"] is None:
        return "–"
    mean, std = cell["mean"], cell["std"]
    if percentage:
        return percent(mean) + (f" ± {percent(std)}" if std is not None else "")
    # what is the same in every seed, as bytes often are, has no spread to show
    return plain(mean) + (f" ± {in_scale_of(std, mean)}" if std else "")


def _command(card: Mapping[str, Any]) -> list[str]:
    if card["command"] is None:
        return [
            "## Command",
            "No command was recorded: this was started from Python or is a part of a larger experiment. Each run's "
            "`config.toml` has all its settings; for a named data set and network "
            "`fedapm run RUN/config.toml --out rerun` repeats it.",
        ]
    return [
        "## Command",
        f"```console\n{card['command']}\n```",
        "To run it again with the versions below:",
        f"```console\n{card['rerun']}\n```",
    ]


def _digest(card: Mapping[str, Any]) -> list[str]:
    results = card["results"]
    check = "python -c 'from fedapm.card import digest; print(digest(\"rerun\"))'"
    return [
        "## Digest of the results",
        f"`{results['sha256']}`, the sha256 over the `rounds.jsonl` of {counted(results['files'], 'run')} and where "
        "each lies in the folder.",
        "A repetition on the same kind of machine with the same versions has the same digest. Elsewhere sums may be "
        "rounded in another way, and then the digest differs though the results agree. For a repetition it is had by:",
        f"```console\n{check}\n```",
    ]


def _time(time: Mapping[str, Any]) -> str:
    dates = f"From {time['began']} to {time['ended']}" + (
        " (dates of the files)." if time["dates_from"] == "files" else f", in {counted(time['commands'], 'command')}."
    )
    rounds = f"All rounds together took {_duration(time['rounds_seconds'])} of wall time"
    if time["processor_seconds"] is None:
        return f"{dates} {rounds}. Processor time was not recorded."
    whole = (
        f"; the commands took {_duration(time['wall_seconds'])} of wall time and "
        f"{_duration(time['processor_seconds'])} of processor time."
    )
    killed = " A command was killed before it could note its time, so the last two are too small."
    return f"{dates} {rounds}{whole}{'' if time['whole'] else killed}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _machine(card: Mapping[str, Any]) -> str:
    hardware = card["hardware"]
    memory = hardware["memory_bytes"]
    rows = {
        "processor": hardware["processor"],
        "cores": hardware["cores"],
        "memory": f"{memory / 2**30:.1f} GiB" if memory is not None else None,
        "graphics card": ", ".join(hardware.get("gpu", [])) or None,
        "system": hardware["system"],
        **card["versions"],
    }
    lines = [f"| {name} | {_escaped(value)} |" for name, value in rows.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *lines])


def _settings(settings: Mapping[str, Any]) -> list[str]:
    parts = ["The same in all runs:", _toml(settings["common"])] if settings["common"] else []
    for method, found in settings["by_method"].items():
        parts += [f"`{method}`:", _toml(found)]
    if settings["varying"]:
        parts.append("Varied within a method:")
        parts.append("\n".join(f"- `{name}`: {_values(values)}" for name, values in settings["varying"].items()))
    return parts


def _values(values: Sequence[Any]) -> str:
    return listed([f"`{value}`" for value in values], MOST_VALUES)


def _toml(names: Mapping[str, Any]) -> str:
    """Settings by name as the tables of an experiment file."""
    tables: dict[str, Any] = {}
    for name, value in names.items():
        *outer, last = name.split(".")
        inner = tables
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return f"```toml\n{tomli_w.dumps(tables).strip()}\n```"


def _either(values: Sequence[int]) -> str:
    return " or ".join(f"{value:,}" for value in values)


def _escaped(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
