"""tune.json: what a search was asked for and what it found, so that the same command goes on and no other one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapm.data.federation import Federation
from fedapm.errors import FedapmError
from fedapm.runs.config import changed_settings
from fedapm.runs.files import read_json, remove_leftovers, write_json
from fedapm.runs.layout import TRIALS, TRIALS_DATABASE, TUNE_INFO
from fedapm.tuning.method_search import MethodSearch
from fedapm.tuning.options import Options
from fedapm.tuning.results import SearchResult
from fedapm.tuning.study import library
from fedapm.version import __version__


def begin(out: Path, options: Options, subjects: Sequence[MethodSearch], clients: Federation, workers: int) -> None:
    """Write down what is asked for, or check that it is what the folder was begun with."""
    whom = {"methods": [subject.name for subject in subjects], "data": clients.name, "clients": len(clients)}
    asked = {
        "arguments": whom | options.as_dict(),
        "settings": {subject.name: subject.base.tables() for subject in subjects},
        "spaces": {subject.name: {d.name: str(d.values) for d in subject.space} for subject in subjects},
    }
    if (out / TUNE_INFO).is_file():
        before = _check_same(out, asked)
        workers = max(workers, int(before.get("workers", 1)))
        remove_leftovers(out)
    if (out / TRIALS).exists() and not (out / TRIALS_DATABASE).is_file():
        raise FedapmError(
            f"{out} has trials but no {TRIALS_DATABASE}, so there is no knowing them; use another folder."
        )
    # who finishes first matters where a trial depends on earlier ones
    depends = options.pruner != "none" or any(subject.points is None for subject in subjects)
    versions = {"fedapm": __version__, "optuna": library().__version__}
    about = {"status": "running", **versions, "workers": workers, "depends_on_workers": depends and workers > 1}
    write_json(out / TUNE_INFO, about | asked)


def finish(out: Path, found: Sequence[SearchResult]) -> None:
    """Write down what was found."""
    content = read_json(out / TUNE_INFO)
    results = {one.name: one.as_dict() for one in found}
    write_json(out / TUNE_INFO, content | {"status": "complete", "methods": results})


def _check_same(out: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the folder says already, if it was begun with the same arguments."""
    old = read_json(out / TUNE_INFO)
    for part in ("arguments", "settings", "spaces"):
        if not isinstance(old.get(part), dict):
            raise FedapmError(f"{out / TUNE_INFO} lacks {part!r}; use another folder.")
    before, now = old["arguments"], asked["arguments"]
    changed = [f"{name} was {_text(before.get(name))}" for name in now if before.get(name) != now[name]]
    for name, tables in asked["settings"].items():
        if name in old["settings"]:
            changed += sorted({*changed_settings(old["settings"][name], tables)} - {"engine.rounds"})
    if not changed and old["spaces"] != asked["spaces"]:
        changed = ["the search space"]
    if changed:
        raise FedapmError(
            f"{out} was begun with other arguments ({', '.join(dict.fromkeys(changed))}); go on with the same ones or "
            "use another folder."
        )
    return old


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "not given"
    return "not given" if value is None else str(value)
