"""tune.json: the arguments of a search and its results, so that only the same command continues it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapm.data.federation import Federation
from fedapm.errors import FedapmError
from fedapm.runs.config import changed_settings
from fedapm.runs.files import write_json
from fedapm.runs.folder import tidy
from fedapm.runs.layout import TRIALS, TRIALS_DATABASE, TUNE_INFO
from fedapm.runs.schema import TuneInfo, read
from fedapm.tuning.method_search import MethodSearch
from fedapm.tuning.options import Options
from fedapm.tuning.results import SearchResult
from fedapm.tuning.study import library
from fedapm.version import __version__


def begin(out: Path, options: Options, searches: Sequence[MethodSearch], clients: Federation, workers: int) -> None:
    """Record what is searched, or check that it is what the folder was begun with.

    Args:
        out: The folder of the search.
        options: How the search is done.
        searches: The methods and their spaces.
        clients: The clients' data.
        workers: How many trials are run at a time.

    Raises:
        FedapmError: Where the folder was begun with other arguments, or lacks its database.
    """
    scope = {"methods": [search.name for search in searches], "data": clients.name, "clients": len(clients)}
    content = {
        "arguments": scope | options.as_dict(),
        "settings": {search.name: search.base.tables() for search in searches},
        "spaces": {search.name: {d.name: str(d.values) for d in search.space} for search in searches},
    }
    if (out / TUNE_INFO).is_file():
        before = _check_same(out, content)
        workers = max(workers, int(before.get("workers", 1)))
        tidy(out)
    if (out / TRIALS).exists() and not (out / TRIALS_DATABASE).is_file():
        raise FedapmError(f"{out} has trials but no {TRIALS_DATABASE}, so it cannot be continued; use another folder.")
    # where a trial depends on earlier ones, it matters which of them finished first
    depends = options.pruner != "none" or any(search.points is None for search in searches)
    versions = {"fedapm": __version__, "optuna": library().__version__}
    state = {"status": "running", **versions, "workers": workers, "depends_on_workers": depends and workers > 1}
    write_json(out / TUNE_INFO, state | content)


def finish(out: Path, results: Sequence[SearchResult]) -> None:
    """Record the results."""
    content = read(TuneInfo, out / TUNE_INFO)
    methods = {result.name: result.as_dict() for result in results}
    write_json(out / TUNE_INFO, content | {"status": "complete", "methods": methods})


def _check_same(out: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The folder's tune.json, if it was begun with the same arguments."""
    old = read(TuneInfo, out / TUNE_INFO)
    before, now = old["arguments"], content["arguments"]
    changed = [f"{name} was {_text(before.get(name))}" for name in now if before.get(name) != now[name]]
    for name, tables in content["settings"].items():
        if name in old["settings"]:
            changed += sorted({*changed_settings(old["settings"][name], tables)} - {"engine.rounds"})
    if not changed and old["spaces"] != content["spaces"]:
        changed = ["the search space"]
    if changed:
        raise FedapmError(
            f"{out} was begun with other arguments ({', '.join(dict.fromkeys(changed))}); continue with the same ones "
            "or use another folder."
        )
    return old


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "not given"
    return "not given" if value is None else str(value)
