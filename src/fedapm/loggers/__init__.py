"""Logs of runs in the formats of other tools. They follow a run and have no part in its results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedapm.core.extras import require
from fedapm.errors import FedapmError, did_you_mean
from fedapm.loggers.guarded import Guarded

if TYPE_CHECKING:
    from fedapm.simulation.loop import Callback
    from fedapm.simulation.spec import CallbackFactory, RunSpec

KINDS = ("tensorboard", "mlflow")
"""What a run can be logged to; the package and the extra of each have its name."""


def log_callbacks(kinds: Sequence[str] | None, root: Path) -> list[CallbackFactory]:
    """What makes the logs of these kinds for every run below a folder.

    An unknown kind or a library that is not installed is said at once and not after hours of training.
    """
    names = list(dict.fromkeys(kinds or ()))
    for name in names:
        if name not in KINDS:
            raise FedapmError(f"there is no log of the kind {name!r}; {did_you_mean(name, KINDS)}")
        _need(name)
    return [_factory(name, root) for name in names]


def _need(name: str) -> None:
    if name == "tensorboard":
        require("tensorboard", name, f"--log {name}")
    else:
        from fedapm.loggers.mlflow import library

        library()


def _factory(name: str, root: Path) -> CallbackFactory:
    def make(plan: RunSpec, folder: Path | None, last: int) -> Callback:
        if folder is None:
            raise FedapmError(f"a log of the kind {name!r} needs a folder for the run.")
        if name == "tensorboard":
            from fedapm.loggers.tensorboard import TensorBoard

            return Guarded(TensorBoard(folder, plan.settings, last), "TensorBoard")
        from fedapm.loggers.mlflow import MLflow

        return Guarded(MLflow(folder, root, plan, last), "MLflow")

    return make
