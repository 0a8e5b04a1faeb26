"""Logs of runs in the formats of other tools. They follow a run and have no part in its results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedapm.core.extras import require
from fedapm.core.registry import Registry
from fedapm.errors import FedapmError, did_you_mean
from fedapm.runs.layout import CONFIG

if TYPE_CHECKING:
    from fedapm.simulation.loop import Callback
    from fedapm.simulation.spec import CallbackFactory, RunSpec

logger = logging.getLogger(__name__)

LoggerFactory = Callable[["RunSpec", Path, Path, int], "Callback"]
"""Makes the log of a run from the run, its folder, the folder of all runs of the command, and the last round that is
there already (-1: none)."""


def _tensorboard(spec: RunSpec, folder: Path, root: Path, last: int) -> Callback:
    from fedapm.loggers.tensorboard import TensorBoard

    del root
    return TensorBoard(folder, spec.settings, last)


def _mlflow(spec: RunSpec, folder: Path, root: Path, last: int) -> Callback:
    from fedapm.loggers.mlflow import MLflow

    tags = {"method": spec.algorithm.name, "seed": str(spec.problem.seed)}
    return MLflow(folder, root, spec.settings, tags, last)


LOGGERS: Registry[LoggerFactory] = Registry(
    "logger", "fedapm.loggers", {"tensorboard": _tensorboard, "mlflow": _mlflow}
)
"""The loggers by name, built in or added through the entry points ``fedapm.loggers``."""

TITLES = {"tensorboard": "TensorBoard", "mlflow": "MLflow"}


def log_callbacks(names: Sequence[str] | None, root: Path) -> list[CallbackFactory]:
    """What makes the logs of these names for every run below a folder.

    An unknown name or a library that is not installed is an error at once, not after hours of training.
    """
    loggers = {name: LOGGERS.find(name) for name in names or ()}
    for name in loggers:
        _require_library(name)
    return [_factory(name, logger, root) for name, logger in loggers.items()]


def check_folder_logs(names: Sequence[str] | None) -> list[str]:
    """The names of logs that :func:`log_folder` can write, each once.

    Raises:
        FedapmError: If one cannot be written from a folder, or its library is not installed.
    """
    for name in names or ():
        if name not in TITLES:
            raise FedapmError(f"there is no logger {name!r} for runs on other machines; {did_you_mean(name, TITLES)}")
        _require_library(name)
    return list(dict.fromkeys(names or ()))


def log_folder(names: Sequence[str], folder: Path) -> None:
    """Log a run that other processes have written to a folder; logging it again adds no round twice."""
    from fedapm.runs.files import parse_toml
    from fedapm.runs.records import load_run

    run = load_run(folder)
    settings = parse_toml(run.config, str(folder / CONFIG))
    tags = {"method": str(run.info["method"]), "seed": str(run.seed)}
    for name in names:
        try:
            log: TensorBoard | MLflow
            if name == "tensorboard":
                from fedapm.loggers.tensorboard import TensorBoard

                log = TensorBoard(folder, settings, -1)
            else:
                from fedapm.loggers.mlflow import MLflow

                log = MLflow(folder, folder, settings, tags, -1)
            for record in run.rounds:
                log.write(record)
            log.close(str(run.info["status"]))
        except Exception as error:  # a log that fails is no reason to go without the report
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            logger.warning("logging to %s failed (%s); the run itself is complete.", TITLES[name], reason)


def _require_library(name: str) -> None:
    if name == "tensorboard":
        require("tensorboard", name, f"--log {name}")
    elif name == "mlflow":
        from fedapm.loggers.mlflow import library

        library()


def _factory(name: str, logger: LoggerFactory, root: Path) -> CallbackFactory:
    from fedapm.loggers.guarded import Guarded

    def make(spec: RunSpec, folder: Path | None, last: int) -> Callback:
        if folder is None:
            raise FedapmError(f"the logger {name!r} needs a folder for the run.")
        return Guarded(logger(spec, folder, root, last), TITLES.get(name, name))

    return make
