"""Run the same methods on Flower: clients on machines of their own, each with durable state.

docs/explanation/flower-protocol.md describes the messages and what happens when something fails. Flower is imported
only when it is used.
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
    data: Loader | None = None,
    model: Model | None = None,
    loss: Loss | None = None,
    state: str | Path | None = None,
    folder: str | Path | None = None,
) -> ClientApp:
    """Make the Flower ClientApp that runs on every node.

    Args:
        data: Returns a client's data for its id: :class:`~fedapm.ClientData`, or a pair of arrays (x, y). By default
            the node's ``data-file`` is read, or else its part of the experiment's data set.
        model: Makes the network, where the experiment does not name one; give the server the same.
        loss: The loss, if not cross-entropy (classes) or squared error (quantities); give the server the same.
        state: Where nodes without a ``state-dir`` of their own store their state.
        folder: Where the modules are that the experiment names as ``data.factory`` and ``model.factory``.

    Raises:
        FedapmError: If the extra ``flower`` is not installed.
    """
    require("flwr", EXTRA, PURPOSE)
    from fedapm.flower.client.app import make

    return make(
        data,
        model,
        loss,
        Path(state) if state is not None else None,
        Path(folder) if folder is not None else None,
    )


def server_app(
    experiment: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    model: Model | None = None,
    loss: Loss | None = None,
) -> ServerApp:
    """Make the Flower ServerApp that runs beside the SuperLink.

    Args:
        experiment: A TOML file, or its tables.
        out: The run folder; the key ``out`` of Flower's run config comes before it.
        model: Makes the network, where the experiment does not name one; it is called without an argument.
        loss: The loss, if not cross-entropy (classes) or squared error (quantities).

    Raises:
        FedapmError: If the extra ``flower`` is not installed.
    """
    require("flwr", EXTRA, PURPOSE)
    from fedapm.flower.server.app import make

    return make(experiment, Path(out) if out is not None else None, model, loss)


__all__ = ["client_app", "server_app"]
