"""Worker processes that run whole trials. Only the parent opens the trials' database."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedapm.experiments.settings import Experiment
from fedapm.simulation.pool import Parent, serve
from fedapm.tuning.scorer import Scorer
from fedapm.tuning.trial import Clients, run_trial


def run_trials(connection: Connection, clients: Clients) -> None:
    """The life of a worker.

    Args:
        connection: The pipe to the parent.
        clients: The clients' data.
    """

    def work(job: Mapping[str, Any], parent: Parent) -> Mapping[str, Any]:
        runs = [(Experiment.from_tables(tables), Path(folder)) for tables, folder in job["runs"]]

        def should_stop(step: int, value: float) -> bool:
            answer = parent.ask({"step": step, "value": value})
            return answer is None or bool(answer["stop"])

        outcome = run_trial(runs, clients, Scorer(job["metric"], job["select"]), should_stop)
        return {"status": outcome.status, "scores": outcome.scores}

    serve(connection, work)
