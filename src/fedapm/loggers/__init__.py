"""Logs of runs in the formats of other tools. They follow a run and have no part in its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedapm.core.extras import require
from fedapm.core.registry import Registry
from fedapm.errors import FedapmError
from fedapm.loggers.guarded import Guarded

if TYPE_CHECKING:
    from fedapm.simulation.loop import Callback
    from fedapm.simulation.spec import CallbackFactory, RunSpec

LoggerFactory = Callable[["RunSpec", Path, Path, int], "Callback"]
"""Makes the log of a run from the run, its folder, the folder of all runs of the command, and the last round that is
there already (-1: none)."""


def _tensorboard(spec: RunSpec, folder: Path, root: Path, last: int) -> Callback:
    from fedapm.loggers.tensorboard import TensorBoard

    del root
    return TensorBoard(folder, spec.settings, last)


def _mlflow(spec: RunSpec, folder: Path, root: Path, last: int) -> Callback:
    from fedapm.loggers.mlflow import MLflow

    return MLflow(folder, root, spec, last)


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


def _require_library(name: str) -> None:
    if name == "tensorboard":
        require("tensorboard", name, f"--log {name}")
    elif name == "mlflow":
        from fedapm.loggers.mlflow import library

        library()


def _factory(name: str, logger: LoggerFactory, root: Path) -> CallbackFactory:
    def make(spec: RunSpec, folder: Path | None, last: int) -> Callback:
        if folder is None:
            raise FedapmError(f"the logger {name!r} needs a folder for the run.")
        return Guarded(logger(spec, folder, root, last), TITLES.get(name, name))

    return make
