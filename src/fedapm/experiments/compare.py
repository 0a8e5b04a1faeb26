"""Comparison: several methods and seeds on the same clients, each run in a folder of its own."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedapm.algorithms import METHODS, PRESETS, hyperparameters, method
from fedapm.core.metrics import METRICS, Metric
from fedapm.core.network import Loss
from fedapm.core.solver import SGDConfig
from fedapm.data import Federation
from fedapm.errors import Diverged, FedapmError, did_you_mean
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import Experiment, ModelSettings, Tables, validated
from fedapm.experiments.side_by_side import Demand, Materials, Member, run_side_by_side, runs_at_once
from fedapm.loggers.series import Series
from fedapm.runs.files import read_json, write_json
from fedapm.runs.folder import is_done, locked
from fedapm.runs.layout import COMPARE_INFO
from fedapm.simulation.problem import Model
from fedapm.simulation.spec import CallbackFactory, RunSpec

logger = logging.getLogger(__name__)
NESTED: dict[str, type[SGDConfig] | type[ModelSettings]] = {"solver": SGDConfig, "model": ModelSettings}
"""The tables a method may have for itself, as in ``[fedapm.solver]``."""


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Where the run of a method and a seed lies in a comparison."""
    return out / name / f"seed-{seed}"


def plans(
    methods: Sequence[str], seeds: Sequence[int], *layers: Mapping[str, Any], given: bool = False
) -> list[Experiment]:
    """Every run of a comparison, checked before the first one starts.

    Args:
        methods: The methods' names.
        seeds: The seeds of each method.
        layers: Settings. Later layers win; within one of them a method's own tables win over the tables for all.
        given: Whether clients and network are given in Python, so that no data set's defaults apply.
    """
    named: tuple[tuple[Sequence[Any], str], ...] = ((methods, "method"), (seeds, "seed"))
    for items, what in named:
        if not items:
            raise FedapmError(f"a comparison needs at least one {what}.")
        if len(set(items)) != len(items):
            raise FedapmError(f"a {what} is named twice in the comparison.")
    _check(methods, layers)
    return [
        build.resolve(*method_layers(name, layers), {"engine": {"seed": seed}}, given=given)
        for name in methods
        for seed in seeds
    ]


def method_layers(name: str, layers: Sequence[Mapping[str, Any]]) -> list[Tables]:
    """What layers of settings say to one method: of each what is for all, then the method's own, as ``[fedapm]``."""
    known = hyperparameters(method(name))
    tables: list[Tables] = []
    for layer in layers:
        common = {k: v for k, v in layer.items() if k != "algorithm" and k not in METHODS | PRESETS}
        shared = {k: v for k, v in layer.get("algorithm", {}).items() if k in known}
        own = dict(layer.get(name, {}))
        nested = {table: own.pop(table) for table in NESTED if table in own}
        tables += [common, {**nested, "algorithm": {"name": name, **shared, **own}}]
    return tables


def overlay(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Layers as one, later ones winning key by key at any depth."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            both = isinstance(value, Mapping) and isinstance(below, Mapping)
            result[key] = overlay(below, value) if both and below is not None else value
    return result


def _check(methods: Sequence[str], layers: Sequence[Mapping[str, Any]]) -> None:
    known = {field for name in methods for field in hyperparameters(method(name))}
    for layer in layers:
        for name in ("algorithm", *METHODS, *PRESETS):
            if not isinstance(layer.get(name, {}), Mapping):
                raise FedapmError(f"{name!r} should be a table, as in [{name}].")
        for field_ in layer.get("algorithm", {}):
            if field_ != "name" and field_ not in known:
                raise FedapmError(
                    f"unknown setting 'algorithm.{field_}' of {', '.join(methods)}; {did_you_mean(field_, known)}"
                )
        for name in methods:
            _check_own(name, layer.get(name, {}))


def _check_own(name: str, own: Mapping[str, Any]) -> None:
    """A method's own tables, so that what is wrong in them is named as it stands there."""
    kind = method(name)
    known = {*hyperparameters(kind), *NESTED}
    for key in own:
        if key not in known:
            raise FedapmError(f"unknown setting '{name}.{key}' of {name}; {did_you_mean(key, known)}")
    if hyper := {k: v for k, v in own.items() if k not in NESTED}:
        validated(kind, name, hyper)
    for table in (table for table in NESTED if table in own):
        if not isinstance(own[table], Mapping):
            raise FedapmError(f"'{name}.{table}' should be a table, as in [{name}.{table}].")
        validated(NESTED[table], f"{name}.{table}", own[table])


def parse_targets(texts: Sequence[str]) -> dict[str, float]:
    """Levels to reach, each given as ``metric=value``."""
    targets: dict[str, float] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise FedapmError(f"--target takes metric=value, such as accuracy=0.62, not {text!r}.")
        if name not in METRICS:
            raise FedapmError(f"unknown metric {name!r} in --target {text}; {did_you_mean(name, METRICS)}")
        if name in targets:
            raise FedapmError(f"--target names {name} twice; give it one value.")
        try:
            targets[name] = float(value)
        except ValueError:
            targets[name] = math.nan
        if not math.isfinite(targets[name]):
            raise FedapmError(f"--target {text}: {value!r} is not a number.")
    return targets


@dataclass(frozen=True)
class About:
    """What a comparison is for, apart from its runs: compare.json, which reports read."""

    methods: Sequence[str]
    seeds: Sequence[int]
    targets: Mapping[str, float] = field(default_factory=dict)
    tuned: Mapping[str, Any] | None = None
    """Where tuned settings came from: the file's name, its digest, and the methods it was used for."""

    def over(self, folder: Path) -> dict[str, Any]:
        """What compare.json should say, given what it says already: a comparison may grow."""
        old = read_json(folder / COMPARE_INFO) if (folder / COMPARE_INFO).is_file() else {}
        before = old.get("tuned")
        if before and self.tuned and before.get("sha256") != self.tuned["sha256"]:
            raise FedapmError(f"{folder} was compared with other tuned settings; compare into another folder.")
        tuned = dict(self.tuned or before or {})
        if before and self.tuned:
            tuned["methods"] = _union(before.get("methods", []), self.tuned["methods"])
        return {
            "targets": dict(self.targets or old.get("targets", {})),
            "tuned": tuned or None,
            "methods": _union(old.get("methods", []), self.methods),
            "seeds": _union(old.get("seeds", []), self.seeds),
        }


def _union(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys([*old, *new]))


def run_all(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    progress: bool = True,
    callbacks: Sequence[CallbackFactory] = (),
    about: About | None = None,
    clients: Federation | None = None,
    model: Model | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Metric] | None = None,
    workers: int | None = None,
) -> list[Path]:
    """Run what is not finished yet; a run that was cut off goes on where it stopped.

    Runs go side by side, each on one thread, as many as there are processors and memory for. They go one after the
    other with an engine that deals clients out to processes itself, on a GPU, and with callbacks, which may write to
    one place. The records are the same.

    Args:
        experiments: The runs.
        out: The folder of the comparison.
        progress: Whether to show how far each run is.
        callbacks: What makes further callbacks of each run.
        about: What compare.json says.
        clients: The clients, where they are not those that the settings name.
        model: The network, where it is not the one that the settings name.
        loss: As in :func:`fedapm.train`.
        metrics: As in :func:`fedapm.experiments.build.plan`.
        workers: How many runs go side by side; what the settings say if not given, or else what suits.

    Returns:
        The folder of each run.
    """
    with locked(out):
        info = about.over(out) if about is not None else None
        materials = Materials(clients or build.federation(experiments[0].data), model, loss, metrics)
        prepared: list[tuple[Member, RunSpec]] = []
        for settings in experiments:
            folder = run_folder(out, settings.algorithm.name, settings.engine.seed)
            prepared.append((Member(settings, folder), materials.plan(settings)))
        advice = "compare into another folder"
        done = [is_done(member.folder, plan.settings, advice, info=plan.identity()) for member, plan in prepared]
        left = [position for position, is_there in enumerate(done) if not is_there]

        def record() -> None:
            # not before there is a run: a comparison that is refused leaves nothing behind
            if info is not None:
                write_json(out / COMPARE_INFO, info)

        asked = 1 if callbacks else workers or experiments[0].engine.workers
        one_each = {prepared[position][1].algorithm.name: prepared[position][1] for position in left}
        at_once = runs_at_once(len(left), asked, [Demand.of(plan) for plan in one_each.values()])
        if at_once > 1:
            members = [prepared[position][0] for position in left]
            run_side_by_side(members, materials, at_once, progress=progress, began=record)
            left = []
        series = Series(
            [
                (plan.algorithm.name, 0 if is_there else plan.schedule.rounds)
                for (_, plan), is_there in zip(prepared, done, strict=True)
            ]
        )
        for position in left:
            member, plan = prepared[position]
            try:
                turn = series.turn(position)
                execute(plan, member.folder, resume=True, progress=progress, callbacks=callbacks, turn=turn)
            except Diverged as error:
                logger.warning("%s The comparison goes on without this run.", error)
            series.end(position)
            record()
        record()
    return [member.folder for member, _ in prepared]
