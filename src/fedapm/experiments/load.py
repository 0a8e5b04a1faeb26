"""LoadedResult: a run read back from its folder, with every client's model."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedapm import models
from fedapm.algorithms import METHODS, PRESETS
from fedapm.core import random
from fedapm.core.network import Loss
from fedapm.core.record import RoundRecord
from fedapm.core.samples import Samples, mean_batches
from fedapm.core.transform import Transform
from fedapm.data.clients import ClientData
from fedapm.data.federation import Federation
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.newcomer import TrainedRun
from fedapm.experiments.own import own_network, with_adapters
from fedapm.experiments.result import BaseResult
from fedapm.experiments.settings import DataSettings, Experiment, ModelSettings, validated
from fedapm.runs.files import first_line, parse_toml, read_tensors
from fedapm.runs.layout import CHECKPOINTS, CONFIG, ROUNDS, TRANSFORM
from fedapm.runs.models import find_model
from fedapm.runs.records import load_run, unseen_clients
from fedapm.runs.schema import WholeRoundLine, check
from fedapm.simulation.checkpoint import check_same_model, read_latest
from fedapm.simulation.problem import Model, Problem, Weighting, model_factory
from fedapm.simulation.spec import Tables


class LoadedResult(BaseResult):
    """A run read back from its folder: its history and every client's model.

    Args:
        folder: A run folder.
        model: The network, or a function that makes it; needed only for a network of one's own.
    """

    def __init__(self, folder: str | Path, model: Model | None = None) -> None:
        self.run = load_run(Path(folder))
        for number, row in enumerate(self.run.rounds, start=1):
            check(WholeRoundLine, row, f"{self.run.path / ROUNDS}, line {number},")
        self.records = cast(list[RoundRecord], self.run.rounds)
        self._given = model
        self._made: Model | None = None

    @property
    def folder(self) -> Path:
        """Where the run is."""
        return self.run.path

    @property
    def info(self) -> dict[str, Any]:
        """What run.json says."""
        return self.run.info

    @property
    def settings(self) -> Tables:
        """The settings of the run, as in config.toml."""
        return parse_toml(self.run.config, str(self.folder / CONFIG))

    @property
    def clients(self) -> list[str]:
        """The ids of the clients, in order."""
        return [str(client["id"]) for client in self.info["clients"]]

    @property
    def evaluated(self) -> list[str]:
        """The ids of the clients that scores are of; a folder knows no others."""
        return self.clients

    @property
    def views(self) -> list[str]:
        """The names of the models that the method has for each client."""
        return [str(view) for view in self.info.get("views", ["model"])]

    @property
    def classes(self) -> dict[str, Any]:
        """The names of the classes and the labels they had, as :meth:`fedapm.Federation.from_clients` takes them."""
        names, labels = (self.info.get(key, ()) for key in ("class_names", "labels"))
        return {"class_names": names, "labels": labels, "numbered": True}

    @cached_property
    def transform(self) -> Transform | None:
        """What turns raw inputs into those of the networks; None where they are the same."""
        about = self.info.get("transform")
        if about is None:
            return None
        where = self.settings.get("data", {}).get("folder")
        if about.get("name") is not None:
            return Transform.stored(about, None, Path(where) if where is not None else None)
        file = self.folder / TRANSFORM
        if not file.is_file():
            raise FedapmError(f"{file} is missing, which turns raw inputs into those of the network.")
        try:
            return Transform.stored(about, file.read_bytes())
        except RuntimeError as error:
            raise FedapmError(f"{file} is damaged and cannot be read ({first_line(error)}).") from None

    def _position(self, client: int | str) -> int:
        try:
            return super()._position(client)
        except FedapmError:
            if self.run.population == len(self.clients):
                raise
            raise FedapmError(
                f"{self.folder} has the models of {len(self.clients):,} of {self.run.population:,} clients, those that "
                f"were evaluated, and client {client!r} is none of them; export it from the Result of train."
            ) from None

    def report(self, path: str | Path) -> Path:
        """Write the report as one HTML file."""
        from fedapm.report import write_report

        return write_report(self.folder, Path(path))

    def trained_run(self, loss: Loss | None = None) -> TrainedRun:
        """What new clients need of this run, from its last checkpoint; none of its data is needed."""
        if not self.run.complete:
            raise FedapmError(f"{self.folder} is not complete; finish it with --resume.")
        if self.settings.get("algorithm", {}).get("name") not in METHODS | PRESETS:
            raise FedapmError(f"{self.folder} was trained with a method of your own; personalise from its Result.")
        saved = read_latest(self.folder / CHECKPOINTS)
        if saved is None:
            raise FedapmError(f"{self.folder} has no whole checkpoint, which would have its shared model.")
        state, trained = saved
        experiment = Experiment.from_tables({k: v for k, v in self.settings.items() if k != "data"})
        unit = Weighting(experiment.engine.weights, experiment.engine.units).unit(self.run.population)
        sizes = [int(client["train"]) for client in self.info["clients"]]
        samples = experiment.privacy.samples
        told = mean_batches(sizes if samples is None else [samples], experiment.solver.batch_size)
        batches = float(self.info.get("mean_batches", told))

        def problem_for(federation: Federation) -> Problem:
            problem = build.problem(experiment, federation, self._network(), loss)
            check_same_model(self.folder, state.server, experiment.algorithm.server_init(problem.u0))
            return problem.weighted_as(unit, batches)

        seen = self.info.get("seen_classes")
        known = frozenset(map(int, seen)) if seen is not None else None
        algorithm, seed = experiment.algorithm, self.run.seed
        return TrainedRun(
            algorithm,
            state.server,
            seed,
            state.round,
            problem_for,
            lambda: trained,
            known,
            self._info,
            self.transform,
        )

    def _info(self) -> dict[str, Any]:
        return self.info

    def _input_types(self) -> list[str]:
        return [str(name) for name in self.info.get("input_types", ())]

    def _classified(self) -> bool:
        return bool(self.info.get("classes", 1))

    def _unseen(self) -> list[dict[str, Any]]:
        return unseen_clients(self.run)

    def model_tensors(self, position: int, view: str) -> dict[str, Tensor]:
        """A client's model, by its position."""
        return read_tensors(find_model(self.run, self.clients[position], view))[0]

    def _module(self, position: int) -> nn.Module:
        make, _ = model_factory(self._network())
        seed, device = self.run.seed, torch.device("cpu")
        with random.seeded_globally(device, seed, "init"):
            module = make(self._client(position)).cpu()
        table = {k: v for k, v in self.settings.get("model", {}).items() if k not in ("name", "factory")}
        split = validated(ModelSettings, "model", table).rule.apply(module)
        table = self.settings.get("algorithm", {})
        if table.get("name") not in METHODS | PRESETS:
            # a method of the user's own; if it changed the network, the names of its parameters will differ
            return module
        algorithm = Experiment.from_tables({"algorithm": table}).algorithm
        with random.seeded_globally(device, seed, "init of added parts"):
            module, _ = algorithm.adapt(module, split)
        return module.cpu()

    def _network(self) -> Model:
        if self._made is None:
            settings = validated(ModelSettings, "model", self.settings.get("model", {}))
            self._made = self._named_network() if self._given is None else with_adapters(self._given, settings)
        return self._made

    def _named_network(self) -> Model:
        table = self.settings.get("model", {})
        name, own = str(table.get("name")), table.get("factory") is not None
        if not own and name not in models.MODELS:
            label = self.info.get("model", name)
            raise FedapmError(
                f"{self.folder} was trained with a network of your own ({label}); give it, as in "
                "fedapm.load(folder, model=...)."
            )
        if "classes" in self.info and "input_shapes" in self.info:
            classes, shapes = int(self.info["classes"]), self.info["input_shapes"]
        else:
            # a folder of an earlier version: only the data itself knows
            federation = build.federation(validated(DataSettings, "data", self.settings.get("data", {})))
            classes, shapes = federation.classes, federation.shapes
        settings = validated(ModelSettings, "model", table)
        if own:
            return with_adapters(own_network(settings, classes, shapes), settings)
        return with_adapters(models.factory(name, classes, settings.options, shapes), settings)

    def _client(self, position: int) -> ClientData:
        """A client's id and number of classes, in the form that functions that make networks take."""
        about = self.info["clients"][position]
        count = int(about.get("classes", 0))
        inputs = tuple(torch.zeros(max(count, 1), *shape) for shape in self.info.get("input_shapes", ()))
        samples = Samples(inputs, torch.arange(count) if count else torch.zeros(1))
        return ClientData(str(about["id"]), samples, samples[:0])

    def _title(self) -> str:
        return f"{self.run.label} on {self.info.get('data', 'data')}"


def load(folder: str | Path, model: Model | None = None) -> LoadedResult:
    """Read a run back from the folder that ``train(..., out=...)``, ``Result.save`` or ``fedapm run`` wrote.

    Args:
        folder: The run folder.
        model: The network the run was trained with, as it was given to ``train``. It is needed for
            [model][fedapm.Result.model] and [predict][fedapm.Result.predict] after a run with a network of one's own;
            networks that ``fedapm list models`` names are rebuilt. A function of a client's data is called with the
            client's id and number of classes, but without its samples.

    Returns:
        The history of the run and every client's model.

    Raises:
        FedapmError: The folder holds no run.
    """
    return LoadedResult(folder, model)
