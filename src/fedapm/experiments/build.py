"""From settings to a run: data, network, method and schedule put together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapm import models
from fedapm.core.metrics import Metric
from fedapm.core.network import Loss
from fedapm.core.random import numpy_generator
from fedapm.data import (
    IID,
    Dirichlet,
    Federation,
    Natural,
    Overlapping,
    PartitionRule,
    Quantity,
    Shards,
    Source,
    data_set,
)
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments.settings import DataSettings, EngineSettings, Experiment, merged
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Model, Problem, Weighting
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.spec import RunSpec

ROOT_VARIABLE = "FEDAPM_DATA_ROOT"
DEFAULT_ROOT = Path("data")
CLIENTS = 20
NETWORK_TABLE = "flower"
"""The table of an experiment file that only a federation on a network reads; a simulation passes over it."""


def resolve(*layers: Mapping[str, Any]) -> Experiment:
    """Lay settings over the data set's own defaults, later layers winning, and check them."""
    tables = merged(*layers)
    tables.pop(NETWORK_TABLE, None)
    table = tables.get("data", {})
    table = table if isinstance(table, Mapping) else {}
    name, features = table.get("name", DataSettings.name), table.get("features")
    defaults = merged({"model": {}}, data_set(str(name), None if features is None else str(features)).defaults)
    model = tables.get("model", {})
    own = defaults["model"].get("name")
    model = model if isinstance(model, Mapping) else {}
    another = model.get("name", own) != own
    if another or {"preset", "personal", "shared", "split"} & model.keys():
        # a user who says what is personal, or takes another network, does not mean the data set's own preset
        defaults["model"].pop("preset", None)
    if another:
        defaults["model"].pop("options", None)
    return Experiment.from_tables(merged(defaults, tables))


def source(data: DataSettings) -> Source:
    """Where the data set's files and features are."""
    return Source(
        root=data_root(data.root),
        image_encoder=data.image_encoder,
        text_encoder=data.text_encoder,
        samples=data.samples,
        feature_dim=data.feature_dim,
        cache=Path(data.cache).expanduser() if data.cache is not None else None,
    )


def data_root(root: str | None) -> Path | None:
    """The folder of data sets: the one given, the one in FEDAPM_DATA_ROOT, or ``data`` here if it exists."""
    if root is not None or ROOT_VARIABLE in os.environ:
        return Path(root or os.environ[ROOT_VARIABLE]).expanduser()
    return DEFAULT_ROOT if DEFAULT_ROOT.is_dir() else None


def federation(data: DataSettings) -> Federation:
    """The clients and their data."""
    known = data_set(data.name, data.features)
    clients = known.federation(source(data), rule(data), test_fraction=data.test_fraction, seed=data.seed)
    clients = limited(clients, data)
    clients = clients.without(lacking(clients, data)) if data.missing else clients
    clients = clients.for_validation(data.validation, data.seed) if data.validation else clients
    return clients.hold_out(data.unseen, data.seed) if data.unseen else clients


def limited(clients: Federation, data: DataSettings) -> Federation:
    """The clients with as many samples as the settings let them have."""
    if data.train_limit is None and data.test_limit is None:
        return clients
    return clients.limited(data.train_limit, data.test_limit, data.seed)


def rule(data: DataSettings) -> PartitionRule:
    """How samples come to clients."""
    if data.partition == "natural":
        return Natural(data.clients, data.minimum)
    clients = CLIENTS if data.clients is None else data.clients
    if data.partition == "iid":
        return IID(clients)
    if data.partition == "shards":
        return Shards(clients, data.shards)
    if data.partition == "quantity":
        return Quantity(clients, data.concentration, data.minimum)
    if data.partition == "overlapping":
        return Overlapping(clients, data.concentration)
    return Dirichlet(clients, data.concentration, data.minimum)


def lacking(clients: Federation, data: DataSettings) -> dict[str, list[int]]:
    """Which clients, by position, lack which modality. A drawn share never takes a client's last modality."""
    left = {k: set(clients.modalities) for k in range(len(clients))}
    positions: dict[str, list[int]] = {}
    for modality, who in data.missing.items():
        if modality not in clients.modalities or len(clients.modalities) < 2:
            known = clients.modalities if len(clients.modalities) > 1 else ()
            hint = did_you_mean(modality, known) if known else "its inputs are always there."
            raise FedapmError(f"{clients.name} has no modality {modality!r} that a client could lack; {hint}")
        if isinstance(who, list):
            positions[modality] = [clients.position(client) for client in who]
        else:
            if not 0 <= who <= 1:
                raise FedapmError(f"data.missing.{modality} = {who} is not a share of clients between 0 and 1.")
            order = numpy_generator(data.seed, "missing", modality).permutation(len(clients))
            able = [int(k) for k in order if left[int(k)] != {modality}]
            count = round(who * len(clients))
            if count > len(able):
                raise FedapmError(f"data.missing.{modality} = {who} would leave a client without any modality.")
            positions[modality] = sorted(able[:count])
        for k in positions[modality]:
            left[k] -= {modality}
    return positions


def schedule(engine: EngineSettings) -> Schedule:
    """How long, with whom, how often to look."""
    return Schedule(
        engine.rounds,
        Sampling(engine.fraction, engine.count),
        engine.evaluate_every,
        engine.stationarity,
        engine.theory,
        engine.final_personal_epochs,
    )


def problem(
    experiment: Experiment,
    clients: Federation,
    model: Model,
    loss: Loss | None = None,
    device: str = "cpu",
    metrics: Sequence[Metric] | None = None,
) -> Problem:
    """What is to be learnt by whom, under an experiment's settings."""
    return Problem(
        clients,
        model,
        experiment.model.rule,
        adapt=experiment.algorithm.adapt,
        solver=experiment.solver,
        loss=loss,
        weighting=Weighting(experiment.engine.weights, experiment.engine.units),
        metrics=metrics,
        seed=experiment.engine.seed,
        rounds=experiment.engine.rounds,
        device=device,
    )


def plan(
    experiment: Experiment,
    clients: Federation | None = None,
    model: Model | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Metric] | None = None,
) -> RunSpec:
    """A run that is ready to start, with the settings' data and network or with some of the user's own."""
    settings = experiment.tables()
    if clients is not None and model is not None:
        settings["data"] = {"name": clients.name}
        if clients.validation:
            settings["data"]["validation"] = clients.validation
        if clients.unseen:
            settings["data"]["unseen"] = [client.id for client in clients.unseen]
    clients = clients or federation(experiment.data)
    own = model or network(experiment, clients)
    run_problem = problem(experiment, clients, own, loss, experiment.engine.device, metrics)
    if model is not None:
        settings["model"]["name"] = type(run_problem.network(0).module).__name__
    return RunSpec(
        run_problem,
        experiment.algorithm,
        schedule(experiment.engine),
        settings,
        experiment.engine.checkpoint_every,
        experiment.engine.save_models,
        experiment.engine.engine,
        experiment.engine.workers,
        experiment.engine.store,
        experiment.engine.stuck_after,
    )


def network(experiment: Experiment, clients: Federation) -> Model:
    """The network that the settings name, made to measure for the clients' data."""
    if experiment.model.name is None:
        raise FedapmError(f"say which network to train on {experiment.data.name} (model.name).")
    return models.factory(experiment.model.name, clients.classes, experiment.model.options, clients.shapes)
