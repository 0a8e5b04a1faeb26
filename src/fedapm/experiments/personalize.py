"""personalize: a model for clients that took no part in a run, at its fixed shared model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from fedapm.core.network import Loss
from fedapm.data.arrays import Arrays
from fedapm.data.clients import ClientData
from fedapm.data.federation import Federation
from fedapm.data.own import is_data_file, read_client
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments import build
from fedapm.experiments.load import LoadedResult, load
from fedapm.experiments.new_client import NewClient, Options
from fedapm.experiments.newcomer import personalize_client
from fedapm.experiments.result import BaseResult
from fedapm.experiments.settings import DataSettings, in_folder, validated
from fedapm.simulation.problem import Model

NEW = "new"
"""The id of a client that is given as arrays."""


@overload
def personalize(
    run: BaseResult | str | Path,
    data: ClientData | tuple[Arrays, Any],
    *,
    correct: bool = ...,
    epochs: int = ...,
    patience: int = ...,
    validation: float = ...,
    samples: int | None = ...,
    model: Model | None = ...,
    loss: Loss | None = ...,
) -> NewClient: ...


@overload
def personalize(
    run: BaseResult | str | Path,
    data: Federation | list[ClientData],
    *,
    correct: bool = ...,
    epochs: int = ...,
    patience: int = ...,
    validation: float = ...,
    samples: int | None = ...,
    model: Model | None = ...,
    loss: Loss | None = ...,
) -> list[NewClient]: ...


def personalize(
    run: BaseResult | str | Path,
    data: Any,
    *,
    correct: bool = False,
    epochs: int = Options.epochs,
    patience: int = Options.patience,
    validation: float = Options.validation,
    samples: int | None = None,
    model: Model | None = None,
    loss: Loss | None = None,
) -> NewClient | list[NewClient]:
    """Give clients that took no part in a run a personal part of their own, at its fixed shared model.

    The personal part starts at the mean of the trained clients' personal parts or where all clients once started,
    whichever has the lower loss on the new client's training samples. The number of epochs is the one with the lowest
    loss on a share of its samples that is held out. Nothing of the run changes.

    Args:
        run: A result, or a run folder.
        data: A client's data: [ClientData][fedapm.ClientData], or arrays ``(x, y)``. Or several clients: a
            [Federation][fedapm.Federation], or a list of ClientData such as ``result.federation.unseen``. Where the run
            has a transform, arrays and a federation without one are raw; ClientData are as the network takes them.
        correct: Whether the client also gets a copy u_i of the shared part, by FedAPM's first step from the shared
            model. It is kept where it lowers the loss on what is held out.
        epochs: Most passes over a client's data.
        patience: Epochs in a row without a lower loss after which the search ends.
        validation: The share of the training samples that is held out to choose the number of epochs by. With 0, or
            with fewer than ten samples, nothing is held out: with 0 all ``epochs`` are done, with too few samples as
            many as in a round.
        samples: Train on so many samples only, drawn at random.
        model: For a folder whose run had a network of one's own: that network, as it was given to ``train``.
        loss: For a run read from a folder that had a loss of one's own: that loss.

    Returns:
        The client with its model and its scores before and after; a list of them for several clients.

    Raises:
        FedapmError: The run or the data is not usable; the message is one line.
    """
    result = run if isinstance(run, BaseResult) else load(run, model)
    options = Options(epochs, patience, validation, samples, correct)
    trained = result.trained_run(loss)
    clients = _clients(data, result)
    made = [personalize_client(trained, client, options) for client in clients]
    return made if isinstance(data, Federation | list) else made[0]


def new_clients(
    run: LoadedResult,
    *,
    unseen: bool = False,
    name: str | None = None,
    file: Path | None = None,
    clients: Sequence[str] = (),
    root: Path | None = None,
) -> list[ClientData]:
    """The clients that a command names: held out by the run itself, of a data set, or in a file.

    Args:
        run: The run.
        unseen: Those that the run held out.
        name: A data set, or a data file of the user's own with several clients.
        file: One client's file with x and y, and x_test and y_test for a test set.
        clients: Which of them, by id; with a data set it must be said.
        root: The folder of the data set's files, if not the run's.
    """
    if sum([unseen, name is not None, file is not None]) != 1:
        raise FedapmError("say whom to personalise: --unseen, --data NAME --client ID or --file x.npz.")
    if file is not None:
        return _clients(read_client(file), run)
    table = run.settings.get("data", {})
    if unseen and not table.get("unseen"):
        raise FedapmError(f"{run.folder} held no clients out; run it with --set data.unseen=0.2.")
    if name is not None and is_data_file(name):
        table = build.resolve(in_folder({"data": {"file": name}}, Path.cwd())).tables()["data"]
        names = run.info.get("class_names")
        table |= {"class_names": names} if names and not run.info.get("labels") else {}
    elif name is not None and name != table.get("name"):
        table = {"name": name} | build.resolve({"data": {"name": name}}).tables()["data"]
    elif "partition" not in table:
        raise FedapmError(f"{run.folder} was trained on a federation in Python; personalise in Python, or with --file.")
    if root is not None:
        table = {**table, "root": str(root)}
    federation = _transformed(build.federation(validated(DataSettings, "data", table)), run)
    found = {client.id: client for client in (*federation.unseen, *(() if unseen else federation.clients))}
    if not clients and not unseen:
        raise FedapmError(f"say which client of {name} to personalise (--client).")
    for client in clients:
        if client not in found:
            raise FedapmError(f"there is no client {client!r}; {did_you_mean(client, found)}")
    return [found[client] for client in clients] if clients else list(found.values())


def _clients(data: Any, run: BaseResult) -> list[ClientData]:
    if isinstance(data, ClientData):
        return [data]
    if isinstance(data, Federation):
        return list(_transformed(data, run).clients)
    if isinstance(data, list) and all(isinstance(client, ClientData) for client in data):
        return data
    if not _is_pair(data):
        raise FedapmError(f"data is ClientData, a Federation or arrays (x, y), not {type(data).__name__}.")
    if _is_pair(data[0]) and _is_pair(data[1]):
        both = Federation.from_clients({NEW: data[0]}, test={NEW: data[1]}, **run.classes)
        return list(_transformed(both, run).clients)
    client = _transformed(Federation.from_clients({NEW: data}, test={NEW: data}, **run.classes), run)[0]
    return [ClientData(NEW, client.train, client.test[:0])]


def _transformed(data: Federation, run: BaseResult) -> Federation:
    """Raw data as the run's networks take it; what has gone through a transform already stays as it is."""
    if run.transform is None or data.transform is not None:
        return data
    return data.transformed(run.transform)


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 2
