"""The ServerApp: the grid in, a run folder out."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapm.core.network import Loss
from fedapm.errors import FedapmError
from fedapm.experiments.settings import read_toml
from fedapm.flower.server.run import serve
from fedapm.flower.settings import deployment
from fedapm.flower.transport.transport import Transport
from fedapm.simulation.problem import Model


def make(
    experiment: str | Path | Mapping[str, Any], out: Path | None, model: Model | None, loss: Loss | None
) -> ServerApp:
    """An app that runs an experiment; the run config's ``out`` says where, if it is there."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        given = str(context.run_config.get("out", "")).strip()
        folder = Path(given).expanduser() if given else out
        if folder is None:
            raise FedapmError("say where the run is written: flwr run … -c 'out=\"/some/folder\"'.")
        tables = read_toml(Path(experiment)) if isinstance(experiment, str | Path) else experiment
        _log_as_flower()
        serve(Transport(grid), deployment(tables), folder, _tell, model, loss)

    app.main()(main)
    return app


def _log_as_flower() -> None:
    ours, flowers = getLogger("fedapm"), getLogger("flwr")
    ours.handlers, ours.propagate = flowers.handlers, False
    ours.setLevel(INFO)


def _tell(text: str) -> None:
    # Flower's own logger, because only what goes through it is in `flwr log`
    getLogger("flwr").log(INFO, "%s", text)
