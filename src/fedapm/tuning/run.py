"""A search from start to end: its options, its folder and its results."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapm.core.network import Loss
from fedapm.data.federation import Federation
from fedapm.errors import FedapmError
from fedapm.experiments import build, compare
from fedapm.experiments.side_by_side import DEALS_OUT, Demand, runs_at_once
from fedapm.runs.folder import locked, refuse_foreign
from fedapm.runs.layout import TRIALS_DATABASE, TUNE_INFO
from fedapm.simulation.problem import Model
from fedapm.tuning.method_search import MethodSearch, method_searches
from fedapm.tuning.options import Options
from fedapm.tuning.record import begin, finish
from fedapm.tuning.results import Tuned, best_trial, write_tuned
from fedapm.tuning.search import Search
from fedapm.tuning.split.choices import split_dimension
from fedapm.tuning.study import Study, library, quiet, storage
from fedapm.tuning.trial import Clients

logger = logging.getLogger(__name__)
SHARE = 0.2
"""Default share of each client's training data that trials are scored on."""


def tune(
    methods: Sequence[str],
    out: Path,
    *layers: Mapping[str, Any],
    options: Options | None = None,
    clients: Federation | None = None,
    model: Model | None = None,
    loss: Loss | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Tuned:
    """Search good settings for every method with the same number of trials; an interrupted search is continued.

    Args:
        methods: The methods' names.
        out: A folder for the trials and the results.
        layers: Settings as in :func:`fedapm.experiments.compare.plans`. The first trial of a method has these settings.
        options: How the search is done.
        clients: Used in place of the settings' data; their test data is not looked at.
        model: The network, where it is not the one that the settings name.
        loss: As in :func:`fedapm.train`.
        workers: How many trials are run at a time; as many as there are processors and memory for if not given.
        progress: Whether progress is displayed on stderr.

    Returns:
        The results and the tuned settings, which are also in the folder.

    Raises:
        FedapmError: Where something cannot be searched, or the folder holds another search.
    """
    library()
    options = options or Options()
    if workers is not None and workers < 1:
        raise FedapmError(f"--workers {workers}: there must be at least one.")
    common = trial_layers(layers, options)
    given = clients is not None
    if clients is not None:
        common = [{"data": {"name": clients.name}}, *common]
    first = compare.plans(methods, options.seeds, *common, given=given)[0]
    if clients is None:
        clients = build.federation(first.data)
    else:
        clients = clients.for_validation(first.data.validation, first.data.seed)
    options = replace(options, rounds=first.engine.rounds)
    data = clients
    searches = method_searches(
        methods, common, options, len(data), lambda base: split_dimension(base, data, model), given=given
    )
    problem = Clients(clients, model, loss)
    workers = workers or _trials_at_once(searches, problem)
    with locked(out, "fedapm tune"), quiet():
        refuse_foreign(out, TUNE_INFO, "tune")
        begin(out, options, searches, clients, workers)
        store = storage(out / TRIALS_DATABASE)
        studies = [Study(store, search, options) for search in searches]
        Search(out, options, studies, problem, workers, progress).run()
        rows = {study.search.name: tuple(study.rows()) for study in studies}
        results = tuple(best_trial(study.search, rows[study.search.name]) for study in studies)
        tables = write_tuned(out, options, searches, results)
        finish(out, results)
    for result in results:
        if result.number is None:
            logger.warning(
                "every trial of %s diverged, so there are no tuned settings for it; search smaller steps.", result.label
            )
    return Tuned(out, options, results, tables, rows)


def _trials_at_once(searches: Sequence[MethodSearch], clients: Clients) -> int:
    """How many trials there are processors and memory for."""
    first = searches[0].base.engine
    if first.device != "cpu":
        # nothing is tried here: a process that has used a GPU cannot fork others that use it
        return 1
    plans = (build.plan(search.base, clients.federation, clients.model, clients.loss) for search in searches)
    demands = [Demand.of(plan) for plan in plans]
    return runs_at_once(sum(search.budget for search in searches), None, demands)


def trial_layers(layers: Sequence[Mapping[str, Any]], options: Options) -> list[Mapping[str, Any]]:
    """The settings of all trials: scored on validation data, one process each, without saved models."""
    tables = compare.overlay(*layers)
    data, engine = tables.get("data", {}), tables.get("engine", {})
    share = data.get("validation", SHARE) if isinstance(data, Mapping) else SHARE
    if share == 0:
        raise FedapmError("tuning needs validation data: data.validation = 0 leaves none; give a share.")
    kind = engine.get("engine", "sequential") if isinstance(engine, Mapping) else "sequential"
    fixed: dict[str, Any] = {
        "save_models": False,
        # a trial is one process already; engines that deal clients out give the same numbers as the sequential one
        "engine": "sequential" if kind in DEALS_OUT else kind,
        "workers": 1,
    }
    if options.rounds is not None:
        fixed["rounds"] = options.rounds
    return [*layers, {"data": {"validation": share}, "engine": fixed}]
