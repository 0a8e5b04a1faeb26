"""From settings to a run: data, network, method and schedule put together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapm import models
from fedapm.data import IID, Dirichlet, Federation, Partitioner, Shards, data_set
from fedapm.engine.loop import Schedule
from fedapm.engine.problem import Model, Problem, Weighting
from fedapm.engine.sampling import Sampling
from fedapm.errors import FedapmError
from fedapm.execution import Plan
from fedapm.network import Loss
from fedapm.settings import DataSettings, EngineSettings, Experiment, merged


def resolve(*layers: Mapping[str, Any]) -> Experiment:
    """Lay settings over the data set's own defaults, later layers winning, and check them."""
    given = merged(*layers)
    table = given.get("data", {})
    name = table.get("name", DataSettings.name) if isinstance(table, Mapping) else DataSettings.name
    defaults = merged(data_set(str(name)).defaults)
    model = given.get("model", {})
    own = defaults["model"].get("name")
    if isinstance(model, Mapping) and (
        {"preset", "personal", "shared"} & model.keys() or model.get("name", own) != own
    ):
        # a user who says what is personal, or takes another network, does not mean the data set's own preset
        defaults["model"].pop("preset", None)
    return Experiment.from_tables(merged(defaults, given))


def federation(data: DataSettings) -> Federation:
    """The clients and their data."""
    root = Path(data.root).expanduser() if data.root is not None else None
    return data_set(data.name).load(partitioner(data), root, data.test_fraction, data.seed)


def partitioner(data: DataSettings) -> Partitioner:
    """The rule that deals samples out."""
    if data.partition == "iid":
        return IID(data.clients)
    if data.partition == "shards":
        return Shards(data.clients, data.shards)
    return Dirichlet(data.clients, data.concentration, data.minimum)


def schedule(engine: EngineSettings) -> Schedule:
    """How long, with whom, how often to look."""
    return Schedule(engine.rounds, Sampling(engine.fraction, engine.count), engine.evaluate_every, engine.stationarity)


def plan(
    experiment: Experiment, clients: Federation | None = None, model: Model | None = None, loss: Loss | None = None
) -> Plan:
    """A run that is ready to start, with the settings' data and network or with some of the user's own."""
    settings = experiment.tables()
    if clients is not None and model is not None:
        settings["data"] = {"name": clients.name}
    clients = clients or federation(experiment.data)
    problem = Problem(
        clients,
        model or _network(experiment, clients),
        experiment.model.rule,
        adapt=experiment.algorithm.adapt,
        solver=experiment.solver,
        loss=loss,
        weighting=Weighting(experiment.engine.weights, experiment.engine.units),
        seed=experiment.engine.seed,
        rounds=experiment.engine.rounds,
        device=experiment.engine.device,
    )
    if model is not None:
        settings["model"]["name"] = type(problem.network(0).module).__name__
    return Plan(
        problem,
        experiment.algorithm,
        schedule(experiment.engine),
        settings,
        experiment.engine.checkpoint_every,
        experiment.engine.save_models,
    )


def _network(experiment: Experiment, clients: Federation) -> Model:
    if experiment.model.name is None:
        raise FedapmError(f"say which network to train on {experiment.data.name} (model.name).")
    return models.factory(experiment.model.name, clients.classes, experiment.model.options)
