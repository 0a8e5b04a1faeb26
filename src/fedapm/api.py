"""The Python interface: from data to trained personal models in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedapm.algorithms import method
from fedapm.core.algorithm import Algorithm
from fedapm.core.network import Loss
from fedapm.core.solver import SGDConfig
from fedapm.core.split import Preset
from fedapm.data import Federation
from fedapm.experiments import build
from fedapm.experiments.result import Result
from fedapm.experiments.run import execute
from fedapm.experiments.settings import EngineSettings, Experiment, ModelSettings, validated
from fedapm.simulation.problem import Model

SOLVER_KEYS = {field.name for field in fields(SGDConfig)}


def train(
    data: Federation | str,
    model: Model | None = None,
    *,
    algorithm: str | Algorithm = "fedapm",
    personal: Sequence[str] = (),
    shared: Sequence[str] = (),
    frozen: Sequence[str] = (),
    preset: Preset | None = None,
    loss: Loss | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Train a model for every client.

    ``data`` is a Federation, or the name of a data set that needs no files. ``model`` is a module, or a function that
    makes one (of no argument, or of a client's data where clients have networks of their own); for a named data set it
    may be left out. What is personal is said by patterns or a preset. Further keywords are those of the tables
    ``solver`` and ``engine`` in an experiment file: ``lr``, ``epochs``, ``batch_size``, ``rounds``, ``seed``,
    ``fraction`` and so on. With ``out`` a run folder is written as the run goes.
    """
    chosen = method(algorithm)() if isinstance(algorithm, str) else algorithm
    solver = {k: v for k, v in settings.items() if k in SOLVER_KEYS}
    engine = {k: v for k, v in settings.items() if k not in SOLVER_KEYS}
    patterns = {"personal": tuple(personal), "shared": tuple(shared), "frozen": tuple(frozen), "preset": preset}
    split: dict[str, Any] = {k: v for k, v in patterns.items() if v}
    clients = None if isinstance(data, str) else data
    if isinstance(data, str):
        network = split if model is None else {"name": "own"} | split
        tables = {"data": {"name": data}, "model": network, "solver": solver, "engine": engine}
        run = replace(build.resolve(tables), algorithm=chosen)
    elif model is None:
        raise TypeError("train() needs a model for a federation of your own data.")
    else:
        run = Experiment(
            algorithm=chosen,
            model=ModelSettings(**split),
            solver=validated(SGDConfig, "solver", solver),
            engine=validated(EngineSettings, "engine", engine),
        )
    plan = build.plan(run, clients, model, loss)
    return execute(plan, Path(out) if out is not None else None, resume=resume, show=progress)
