"""A search from start to end: what is asked for, the folder it lies in, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapm.data.federation import Federation
from fedapm.errors import FedapmError
from fedapm.experiments import build, compare
from fedapm.runs.folder import locked, refuse_foreign
from fedapm.runs.layout import TRIALS_DATABASE, TUNE_INFO
from fedapm.simulation.workers import cores
from fedapm.tuning.method_search import method_searches
from fedapm.tuning.options import Options
from fedapm.tuning.record import begin, finish
from fedapm.tuning.results import Tuned, best_of, write_tuned
from fedapm.tuning.search import Search
from fedapm.tuning.study import Study, library, quiet, storage

SHARE = 0.2
"""Share of each client's training data that trials are judged by, unless the user says otherwise."""


def tune(
    methods: Sequence[str],
    out: Path,
    *layers: Mapping[str, Any],
    options: Options | None = None,
    clients: Federation | None = None,
    workers: int | None = None,
    show: bool = True,
    warn: Callable[[str], None] | None = None,
) -> Tuned:
    """Search good settings for every method with the same number of trials; a search that was cut off goes on.

    Layers of settings are as in :func:`fedapm.compare.plans`. The first trial of a method has these very settings.
    ``clients`` are used instead of the settings' data; their test data is left aside.
    """
    library()
    asked = options or Options()
    if workers is not None and workers < 1:
        raise FedapmError(f"--workers {workers}: there must be at least one.")
    count = workers or cores()
    common = trial_layers(layers, asked)
    first = compare.plans(methods, asked.seeds, *common)[0]
    if clients is None:
        judged = build.federation(first.data)
    else:
        judged = clients.for_validation(first.data.validation, first.data.seed)
    asked = replace(asked, rounds=first.engine.rounds)
    found = method_searches(methods, common, asked, len(judged))
    with locked(out, "fedapm tune"), quiet():
        refuse_foreign(out, TUNE_INFO, "tune")
        begin(out, asked, found, judged, count)
        store = storage(out / TRIALS_DATABASE)
        studies = [Study(store, subject, asked) for subject in found]
        Search(out, asked, studies, judged, count, show).run()
        results = tuple(best_of(study.subject, study.rows()) for study in studies)
        tables = write_tuned(out, asked, found, results)
        finish(out, results)
    for one in results:
        if one.number is None and warn is not None:
            warn(f"every trial of {one.label} diverged, so there are no tuned settings for it; search smaller steps.")
    return Tuned(out, asked, results, tables)


def trial_layers(layers: Sequence[Mapping[str, Any]], options: Options) -> list[Mapping[str, Any]]:
    """The settings of all trials: judged on validation data, one process each, no models kept."""
    given = compare.laid(*layers)
    data, engine = given.get("data", {}), given.get("engine", {})
    share = data.get("validation", SHARE) if isinstance(data, Mapping) else SHARE
    if share == 0:
        raise FedapmError("tuning needs validation data: data.validation = 0 leaves none; give a share.")
    kind = engine.get("engine", "sequential") if isinstance(engine, Mapping) else "sequential"
    fixed: dict[str, Any] = {
        "save_models": False,
        # a trial is one process already; the engine of processes gives the same numbers as the sequential one
        "engine": "sequential" if kind == "processes" else kind,
        "workers": 1,
    }
    if options.rounds is not None:
        fixed["rounds"] = options.rounds
    return [*layers, {"data": {"validation": share}, "engine": fixed}]
