"""From settings to a run: data, network, method and schedule put together."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapm import models
from fedapm.core.metrics import Metric
from fedapm.core.network import Loss
from fedapm.core.random import numpy_generator
from fedapm.core.samples import mean_batches
from fedapm.core.split import SplitRule
from fedapm.core.transform import Transform
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
from fedapm.data.dealing import deal_out
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments.own import (
    DEFAULTS,
    checked_digest,
    lazy_federation,
    own_federation,
    own_file,
    own_name,
    own_network,
    with_adapters,
)
from fedapm.experiments.settings import OWN_KEYS, DataSettings, EngineSettings, Experiment, Tables, merged
from fedapm.privacy import PrivacySettings, protection
from fedapm.simulation.loop import Schedule
from fedapm.simulation.preflight import check_clients
from fedapm.simulation.problem import Model, Problem, Weighting
from fedapm.simulation.sampling import PoissonSampling, Sampling
from fedapm.simulation.spec import RunSpec
from fedapm.uploads import Masked, layer_of

logger = logging.getLogger(__name__)
ROOT_VARIABLE = "FEDAPM_DATA_ROOT"
DEFAULT_ROOT = Path("data")
CLIENTS = 20
NETWORK_TABLE = "flower"
"""The table of an experiment file that only a federation on a network reads; a simulation passes over it."""


def resolve(*layers: Mapping[str, Any], given: bool = False) -> Experiment:
    """Lay settings over the data set's own defaults, later layers winning, and check them.

    Args:
        layers: Tables of settings.
        given: Whether clients and network are given in Python, so that no data set's defaults apply.
    """
    tables = merged(*layers)
    tables.pop(NETWORK_TABLE, None)
    if given:
        return Experiment.from_tables(tables)
    table = tables.get("data", {})
    table = table if isinstance(table, Mapping) else {}
    if any(table.get(key) is not None for key in OWN_KEYS):
        return _resolve_own(tables)
    name, features = table.get("name", DataSettings.name), table.get("features")
    defaults = merged({"model": {}}, data_set(str(name), None if features is None else str(features)).defaults)
    model = tables.get("model", {})
    own = defaults["model"].get("name")
    model = model if isinstance(model, Mapping) else {}
    if model.get("factory") is not None:
        own = defaults["model"].pop("name", None)
    another = model.get("name", own) != own or model.get("factory") is not None
    if another or {"preset", "personal", "shared", "split"} & model.keys():
        # a user who says what is personal, or takes another network, does not mean the data set's own preset
        defaults["model"].pop("preset", None)
    if another:
        defaults["model"].pop("options", None)
    return Experiment.from_tables(merged(defaults, tables))


def _resolve_own(tables: Tables) -> Experiment:
    """Settings of data of the user's own, which has a name and a digest from here on."""
    named = {**tables, "data": {"name": own_name(tables["data"]), **tables["data"]}}
    experiment = Experiment.from_tables(merged(DEFAULTS, named))
    if experiment.data.file is None:
        return experiment
    return replace(experiment, data=replace(experiment.data, digest=checked_digest(experiment.data)))


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
    clients = limited(_all_clients(data), data)
    if data.transform is not None:
        folder = Path(data.folder) if data.folder is not None else Path.cwd()
        clients = clients.transformed(Transform.named(data.transform, folder))
    clients = clients.without(lacking(clients, data)) if data.missing else clients
    clients = clients.for_validation(data.validation, data.seed) if data.validation else clients
    return clients.hold_out(data.unseen, data.seed) if data.unseen else clients


def _all_clients(data: DataSettings) -> Federation:
    if data.factory is not None:
        made = own_federation(data)
        assert isinstance(made, Federation)
        return made
    how: dict[str, Any] = {"test_fraction": data.test_fraction, "seed": data.seed}
    if data.one_by_one:
        return lazy_federation(data)
    if data.file is not None:
        return deal_out(own_file(data), rule(data), name=data.name, samples=data.samples, **how)
    return data_set(data.name, data.features).federation(source(data), rule(data), **how)


def counted(data: DataSettings) -> Federation:
    """All clients, with positions in the data as inputs where that saves reading it; for counting samples."""
    how: dict[str, Any] = {"test_fraction": data.test_fraction, "seed": data.seed}
    if data.factory is not None or data.one_by_one:
        return _all_clients(data)
    if data.file is not None:
        samples = own_file(data).positions_as_inputs()
        return deal_out(samples, rule(data), name=data.name, samples=data.samples, **how)
    return data_set(data.name, data.features).index_federation(source(data), rule(data), **how)


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


def schedule(engine: EngineSettings, privacy: PrivacySettings | None = None) -> Schedule:
    """How long, with whom, how often to look."""
    sampling = Sampling(engine.fraction, engine.count)
    if privacy is not None and privacy.poisson:
        sampling = PoissonSampling(engine.fraction, engine.count, keyed=privacy.noise == "keyed")
    return Schedule(
        engine.rounds,
        sampling,
        engine.evaluate_every,
        engine.stationarity,
        engine.theory,
        engine.final_personal_epochs,
    )


def split_rule(experiment: Experiment) -> SplitRule:
    """How the network is split; a method that takes no split needs none to be searched."""
    if experiment.model.split is not None and not experiment.algorithm.takes_split():
        return experiment.model.with_patterns().rule
    return experiment.model.rule


def problem(
    experiment: Experiment,
    clients: Federation,
    model: Model,
    loss: Loss | None = None,
    device: str = "cpu",
    metrics: Sequence[Metric] | None = None,
) -> Problem:
    """What is to be learnt by whom, under an experiment's settings."""
    made = Problem(
        clients,
        model,
        split_rule(experiment),
        adapt=experiment.algorithm.adapt,
        solver=experiment.solver,
        loss=loss,
        weighting=Weighting(experiment.engine.weights, experiment.engine.units),
        metrics=metrics,
        seed=experiment.engine.seed,
        rounds=experiment.engine.rounds,
        device=device,
        protection=protection(experiment.privacy, experiment.solver),
        evaluate_clients=experiment.engine.evaluate_clients,
        evaluate_train=evaluate_train(experiment),
    )
    if experiment.privacy.samples is not None:
        made.mean_batches = mean_batches([experiment.privacy.samples], experiment.solver.batch_size)
    return made


def evaluate_train(experiment: Experiment) -> int | None:
    """How many training samples of a client evaluations are of at most; None for all."""
    most = experiment.engine.evaluate_train
    return None if isinstance(most, str) else most


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
            settings["data"]["unseen"] = list(clients.unseen_ids)
    clients = clients or federation(experiment.data)
    own = with_adapters(model, experiment.model) if model is not None else network(experiment, clients)
    run_problem = problem(experiment, clients, own, loss, experiment.engine.device, metrics)
    check_clients(run_problem)
    _check_measures(experiment.engine, run_problem)
    if (masks := layer_of(experiment.method, Masked)) is not None:
        masks.check(schedule(experiment.engine).sampling.size(len(run_problem)))
    if model is not None:
        settings["model"]["name"] = type(run_problem.network(0).module).__name__
    return RunSpec(
        run_problem,
        experiment.method,
        schedule(experiment.engine, experiment.privacy),
        settings,
        experiment.engine.checkpoint_every,
        experiment.engine.save_models,
        experiment.engine.engine,
        experiment.engine.workers,
        experiment.engine.store,
        experiment.engine.stuck_after,
        experiment.engine.ray_address,
    )


def _check_measures(engine: EngineSettings, run_problem: Problem) -> None:
    """Refuse measures of all clients where only some of them are looked at."""
    for name in ("stationarity", "theory"):
        if getattr(engine, name) and len(run_problem.evaluated) < len(run_problem):
            raise FedapmError(
                f"engine.{name} takes a gradient of every client, but {len(run_problem.evaluated):,} of "
                f"{len(run_problem):,} are evaluated; leave it out, or set engine.evaluate_clients to all of them."
            )


def remark_on_split(spec: RunSpec) -> RunSpec:
    """Say so where patterns leave nothing shared, or nothing personal, though the method would split the network."""
    split, rule = spec.problem.network(0).split, spec.problem.rule
    if spec.algorithm.takes_split() and (rule.personal or rule.shared or rule.preset):
        if not split.shared:
            logger.warning("nothing is shared: this is local training; make fewer parameters personal.")
        elif not split.personal and rule.preset != "head":
            logger.warning("nothing is personal: all clients get one model; make some parameters personal.")
    return spec


def network(experiment: Experiment, clients: Federation) -> Model:
    """The network that the settings name, made to measure for the clients' data."""
    return named_network(experiment, clients.classes, clients.shapes)


def named_network(experiment: Experiment, classes: int, shapes: Sequence[Sequence[int]]) -> Model:
    """The network that the settings name, for so many classes and inputs of these shapes."""
    model = experiment.model
    if model.factory is not None:
        return with_adapters(own_network(model, classes, shapes), model)
    if model.name is None:
        raise FedapmError(
            f"say which network to train on {experiment.data.name}: model.name, such as mlp for rows of features (see: "
            "fedapm list models), or model.factory for one of your own."
        )
    return with_adapters(models.factory(model.name, classes, model.options, shapes), model)
