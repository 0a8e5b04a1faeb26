"""The same methods on Flower: clients on machines of their own, each with durable state.

docs/explanation/flower-protocol.md says what is sent and what happens when something fails. Nothing here imports Flower
before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapm.core.extras import require

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from fedapm.core.network import Loss
    from fedapm.flower.client.data import Loader
    from fedapm.simulation.problem import Model

EXTRA, PURPOSE = "flower", "A federation on Flower"


def client_app(
    data: Loader | None = None, model: Model | None = None, loss: Loss | None = None, state: str | Path | None = None
) -> ClientApp:
    """What runs on every node.

    ``data`` gives a client's own data from its id: :class:`~fedapm.ClientData`, or a pair of arrays (x, y). Without it
    the node's ``data-file`` or its part of the experiment's data set is taken. ``model`` and ``loss`` are needed where
    the experiment does not name a network; the server takes the same ones. ``state`` is where nodes without a
    ``state-dir`` of their own keep theirs.
    """
    require("flwr", EXTRA, PURPOSE)
    from fedapm.flower.client.app import make

    return make(data, model, loss, Path(state) if state is not None else None)


def server_app(
    experiment: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    model: Model | None = None,
    loss: Loss | None = None,
) -> ServerApp:
    """What runs beside the SuperLink: an experiment (a TOML file, or its tables), written to the folder ``out``."""
    require("flwr", EXTRA, PURPOSE)
    from fedapm.flower.server.app import make

    return make(experiment, Path(out) if out is not None else None, model, loss)


__all__ = ["client_app", "server_app"]
