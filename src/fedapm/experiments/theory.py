"""The theory of a run folder or of an experiment: its present models are put in place and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapm.algorithms import METHODS, PRESETS
from fedapm.data import DATA_SETS
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import OWN_KEYS, Experiment, Tables, merged
from fedapm.models import MODELS
from fedapm.runs.config import read_config
from fedapm.runs.layout import CHECKPOINTS, EVENTS
from fedapm.runs.records import Run, load_run
from fedapm.simulation.engines.base import LocalEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.spec import RunSpec
from fedapm.simulation.state import RunState
from fedapm.theory.course import course
from fedapm.theory.findings import Findings
from fedapm.theory.study import Progress, study

CLIENTS = 5
"""How many clients' curvature is estimated."""
SAMPLES = 1000
"""How many of a client's samples are used for it at most."""


def theory_of_run(
    folder: Path, *, data_root: Path | None = None, clients: int = CLIENTS, samples: int = SAMPLES, progress: Progress
) -> Findings:
    """Measure a run where its last checkpoint stands.

    Args:
        folder: A run folder, of a run that is complete or not.
        data_root: Where the data set's files are, if not where they were.
        clients: How many clients' curvature is estimated.
        samples: At most so many of a client's samples are used for that; 0 uses all.
        progress: Hears how far it is.
    """
    run = load_run(folder)
    spec = _spec_of(run, data_root)
    engine = SequentialEngine(spec.problem, spec.algorithm)
    engine.open_store(spec.store, None)
    resumed = engine.load(folder / CHECKPOINTS, RunState(0, spec.algorithm.server_init(spec.problem.u0)))
    if resumed is None:
        raise FedapmError(f"{folder} has no checkpoint yet; wait for one or resume the run.")
    records = [row for row in run.rounds if row["round"] <= resumed.state.round]
    return _measured(spec, engine, resumed.state, records, clients, samples, progress)


def theory_of_experiment(
    spec: RunSpec, *, after: int = 0, clients: int = CLIENTS, samples: int = SAMPLES, progress: Progress
) -> Findings:
    """Measure an experiment at its start, or after some rounds that are trained in memory.

    Args:
        spec: The experiment.
        after: How many rounds to train first.
        clients: How many clients' curvature is estimated.
        samples: At most so many of a client's samples are used for that; 0 uses all.
        progress: Hears how far it is.
    """
    if after:
        schedule = replace(spec.schedule, rounds=after, theory=True, closing_epochs=0)
        result = execute(replace(spec, schedule=schedule))
        return _measured(spec, result.engine, result.state, result.records, clients, samples, progress)
    engine = SequentialEngine(spec.problem, spec.algorithm)
    start = RunState(0, spec.algorithm.server_init(spec.problem.u0))
    return _measured(spec, engine, start, [], clients, samples, progress)


def _measured(
    spec: RunSpec,
    engine: LocalEngine,
    at: RunState,
    records: Sequence[Mapping[str, Any]],
    clients: int,
    samples: int,
    progress: Progress,
) -> Findings:
    found = study(
        spec.problem,
        spec.algorithm,
        engine.store.get,
        at.server,
        at.round,
        clients=clients,
        samples=samples,
        progress=progress,
    )
    return Findings(found, course(records))


def _spec_of(run: Run, data_root: Path | None) -> RunSpec:
    """A run as it was set up, from its folder alone."""
    if (run.path / EVENTS).is_file():
        raise FedapmError(f"{run.path} was run on Flower: its clients' states are on their nodes, out of reach.")
    tables: Tables = read_config(run.path)
    data, model, method = (tables.get(name, {}) for name in ("data", "model", "algorithm"))
    # a federation of one's own leaves nothing but its name
    known_data = any(data.get(key) for key in OWN_KEYS) or (data.get("name") in DATA_SETS and "partition" in data)
    known = known_data and (model.get("factory") or model.get("name") in MODELS)
    if not known or method.get("name") not in METHODS | PRESETS:
        raise FedapmError(
            f"{run.path} was trained with data, a network or a method of your own, which its folder does not hold; use "
            "Result.theory() in Python."
        )
    root: Tables = {"data": {"root": str(data_root)}} if data_root is not None else {}
    spec = build.plan(Experiment.from_tables(merged(tables, root)))
    if run.population > len(run.info["clients"]):
        raise FedapmError(
            f"{run.path} evaluated {len(run.info['clients']):,} of {run.population:,} clients; this takes all of them."
        )
    clients = [(c.id, len(c.train)) for c in spec.problem.federation.clients]
    if clients != [(str(c["id"]), c["train"]) for c in run.info["clients"]]:
        raise FedapmError(f"{run.path} was trained on other clients than the data set has now.")
    return spec
