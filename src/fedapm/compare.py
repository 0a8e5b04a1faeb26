"""Comparison: several methods and seeds on the same clients, each run in a folder of its own."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapm import experiment
from fedapm.algorithms import METHODS, PRESETS, hyperparameters, method
from fedapm.errors import Diverged, FedapmError, did_you_mean
from fedapm.execution import WITHOUT_EFFECT, Plan, Warn, execute
from fedapm.records import is_run, load_run
from fedapm.settings import Experiment, differences, merged


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Where the run of a method and a seed lies in a comparison."""
    return out / name / f"seed-{seed}"


def plans(methods: Sequence[str], seeds: Sequence[int], *layers: Mapping[str, Any]) -> list[Experiment]:
    """Every run of a comparison, checked before the first one starts."""
    named: tuple[tuple[Sequence[Any], str], ...] = ((methods, "method"), (seeds, "seed"))
    for items, what in named:
        if not items:
            raise FedapmError(f"a comparison needs at least one {what}.")
        if len(set(items)) != len(items):
            raise FedapmError(f"a {what} is named twice in the comparison.")
    given = merged(*layers)
    for name in ("algorithm", *METHODS, *PRESETS):
        if not isinstance(given.get(name, {}), Mapping):
            raise FedapmError(f"{name!r} should be a table, as in [{name}].")
    _check_hyperparameters(methods, given)
    shared = {k: v for k, v in given.items() if k != "algorithm" and k not in METHODS | PRESETS}
    return [
        experiment.resolve(shared, {"algorithm": method_settings(name, given), "engine": {"seed": seed}})
        for name in methods
        for seed in seeds
    ]


def method_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """One method's hyperparameters: what ``[algorithm]`` holds that it knows, then its own table, as ``[fedapm]``."""
    known = hyperparameters(method(name))
    common = {k: v for k, v in given.get("algorithm", {}).items() if k in known}
    return {"name": name} | common | dict(given.get(name, {}))


def _check_hyperparameters(methods: Sequence[str], given: Mapping[str, Any]) -> None:
    known = {field for name in methods for field in hyperparameters(method(name))}
    for field in given.get("algorithm", {}):
        if field != "name" and field not in known:
            raise FedapmError(
                f"unknown setting 'algorithm.{field}' of {', '.join(methods)}; {did_you_mean(field, known)}"
            )


def run_all(experiments: Sequence[Experiment], out: Path, *, show: bool, warn: Warn) -> list[Path]:
    """Run what is not finished yet; a run that was cut off goes on where it stopped."""
    clients = experiment.federation(experiments[0].data)
    prepared: list[tuple[Path, Plan]] = []
    for settings in experiments:
        folder = run_folder(out, settings.algorithm.name, settings.engine.seed)
        prepared.append((folder, experiment.plan(settings, clients)))
    finished = [is_run(folder) and load_run(folder).complete for folder, _ in prepared]
    for (folder, plan), done in zip(prepared, finished, strict=True):
        if done:
            _check_same(folder, plan)
    for (folder, plan), done in zip(prepared, finished, strict=True):
        if done:
            continue
        try:
            execute(plan, folder, resume=True, show=show, warn=warn)
        except Diverged as error:
            warn(f"{error} The comparison goes on without this run.")
    return [folder for folder, _ in prepared]


def _check_same(folder: Path, plan: Plan) -> None:
    changed = {*differences(tomllib.loads(load_run(folder).config), plan.settings)} - WITHOUT_EFFECT
    if changed:
        raise FedapmError(
            f"{folder} was run with other settings ({', '.join(sorted(changed))}); compare into another folder."
        )
