"""A run in MLflow: on the server that MLFLOW_TRACKING_URI names, or in a database beside the runs."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapm.core.extras import require
from fedapm.errors import FedapmError
from fedapm.loggers.scalars import EVERY_ROUND, closing_scalars, flat, scalars
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import MLFLOW, MLFLOW_ARTIFACTS, MLFLOW_DATABASE, ROUNDS
from fedapm.runs.records import JsonLines
from fedapm.simulation.loop import Callback
from fedapm.version import __version__

if TYPE_CHECKING:
    from fedapm.core.record import RoundRecord
    from fedapm.simulation.state import RunState

AT_ONCE = 100
"""How many parameters MLflow takes in one call."""
LONGEST = 500
"""Letters in a parameter that every version of MLflow accepts."""
STATUS = {"complete": "FINISHED", "interrupted": "KILLED", "diverged": "FAILED"}


class MLflow(Callback):
    """Logs rounds to a run of MLflow's own; a run that is resumed goes on in the same one.

    MLflow keeps every number it is given, so a round that is there already is not sent again. It would come out the
    same anyway.
    """

    def __init__(
        self, folder: Path, root: Path, settings: Mapping[str, Any], tags: Mapping[str, str], last: int
    ) -> None:
        self._library = library()
        server = os.environ.get("MLFLOW_TRACKING_URI")
        if not server:
            root.mkdir(parents=True, exist_ok=True)
        address = server or f"sqlite:///{(root / MLFLOW_DATABASE).absolute().as_posix()}"
        with _usable():
            self._client = self._library.tracking.MlflowClient(tracking_uri=address)
            logged = self._find(folder)
            if logged is None:
                artifacts = None if server else (root / MLFLOW_ARTIFACTS).absolute().as_uri()
                logged = self._create(_name(folder, root), artifacts, settings, tags), set()
            self._id, self._logged = logged
            write_json(folder / MLFLOW, {"run_id": self._id})
            for record in JsonLines(folder / ROUNDS) if last >= 0 else ():
                self.write(record)

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Log a round."""
        del state, seconds
        self.write(record)

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Log the scores after the closing phase."""
        del state, seconds
        self._send(closing_scalars(record), int(record["round"]))

    def on_run_end(self, state: RunState, status: str) -> None:
        """Close the log."""
        del state
        self.close(status)

    def close(self, status: str) -> None:
        """Send the run's final status."""
        self._client.set_terminated(self._id, STATUS.get(status, "FAILED"))

    def write(self, record: Mapping[str, Any]) -> None:
        """Send a round."""
        step = int(record["round"])
        if step in self._logged:
            return
        self._send(scalars(record), step)
        self._logged.add(step)

    def _send(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metric = self._library.entities.Metric
        self._client.log_batch(self._id, metrics=[metric(n, value, now, step) for n, value in values.items()])

    def _find(self, folder: Path) -> tuple[str, set[int]] | None:
        """The run this folder was logged to before, and the rounds it has; None where this server does not have it."""
        if not (folder / MLFLOW).is_file():
            return None
        name = str(read_json(folder / MLFLOW).get("run_id"))
        try:
            self._client.get_run(name)
        except self._library.exceptions.MlflowException:
            return None
        self._client.update_run(name, status="RUNNING")
        return name, {int(metric.step) for metric in self._client.get_metric_history(name, EVERY_ROUND)}

    def _create(self, name: str, artifacts: str | None, settings: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedapm"
        there = self._client.get_experiment_by_name(experiment)
        number = there.experiment_id if there is not None else self._client.create_experiment(experiment, artifacts)
        run_id = str(self._client.create_run(number, tags={**tags, "fedapm": __version__}, run_name=name).info.run_id)
        parameter = self._library.entities.Param
        pairs = [parameter(key, str(value)[:LONGEST]) for key, value in flat(settings).items()]
        for start in range(0, len(pairs), AT_ONCE):
            self._client.log_batch(run_id, params=pairs[start : start + AT_ONCE])
        return run_id


def library() -> Any:
    """MLflow itself, and quiet: a log of private runs is nobody else's business unless the user says so."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    return require("mlflow", "mlflow", "--log mlflow")


def _name(folder: Path, root: Path) -> str:
    """What MLflow calls the run: its place among the others, or its folder's name where it is by itself."""
    inside, outside = folder.absolute(), root.absolute()
    below = inside != outside and inside.is_relative_to(outside)
    return inside.relative_to(outside).as_posix() if below else inside.name


@contextmanager
def _usable() -> Iterator[None]:
    """What goes wrong before the first round, as one line."""
    failure = require("mlflow.exceptions", "mlflow", "--log mlflow").MlflowException
    with warnings.catch_warnings():
        # MLflow asks SQLAlchemy 2.1 for something that SQLAlchemy means to drop
        warnings.filterwarnings("ignore", message="The ``noload`` loader strategy is deprecated")
        try:
            yield
        except failure as error:
            said = (str(error).strip() or "no reason given").splitlines()[0].rstrip(".")
            raise FedapmError(f"MLflow cannot be used: {said}. See MLFLOW_TRACKING_URI, or leave out --log.") from None
