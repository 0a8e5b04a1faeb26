"""A node's own data: from the user's function, from a file, or its part of a named data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapm.core.random import numpy_generator
from fedapm.core.samples import Samples
from fedapm.data.clients import ClientData
from fedapm.data.federation import Federation
from fedapm.data.npz import first_line
from fedapm.data.own import read_client
from fedapm.data.splitting import split_samples
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.own import own_federation
from fedapm.experiments.settings import DataSettings
from fedapm.flower.settings import OWN

Loader = Callable[[str], Any]
"""Returns a client's data for its id: ClientData, or a pair (x, y) to be split into training and test."""


def load_client_data(
    settings: DataSettings, client: str, position: int, loader: Loader | None, file: Path | None
) -> tuple[ClientData, Federation]:
    """Load one client's data.

    Args:
        settings: The experiment's data settings.
        client: The client's id.
        position: Its position among all clients, which decides how its samples are split.
        loader: The user's function; it comes first.
        file: The node's data file; it comes second.

    Returns:
        The data, and a federation that knows the number of classes and the inputs' shapes.

    Raises:
        FedapmError: If there is no data for the client, or it is malformed.
    """
    if loader is not None:
        return _with_federation(_client_data(loader(client), client, position, settings), settings)
    if file is not None:
        arrays = read_client(file)
        try:
            return _with_federation(_client_data(arrays, client, position, settings), settings)
        except (FedapmError, TypeError, ValueError, RuntimeError) as error:
            raise FedapmError(f"{file}: {first_line(error)}") from None
    if settings.name == OWN:
        raise FedapmError(
            f"client {client} has no data: start its node with data-file, or give the app a data function."
        )
    if settings.factory is not None:
        made = own_federation(settings, client)
        if not isinstance(made, Federation):
            return _with_federation(_client_data(made, client, position, settings), settings)
    federation = build.federation(settings)
    ids = federation.ids
    # the clients of a partition are numbered; those of a natural one have names
    index = ids.index(client) if client in ids else position
    if index >= len(ids) or (settings.partition == "natural" and client not in ids):
        raise FedapmError(f"{settings.name} has no part for client {client!r}; it has {len(ids)} clients.")
    return replace(federation[index], id=client), federation


def _client_data(loaded: Any, client: str, position: int, settings: DataSettings) -> ClientData:
    known: dict[str, Any] = {"class_names": settings.class_names, "numbered": True}
    if isinstance(loaded, ClientData):
        data = replace(loaded, id=client)
    elif isinstance(loaded, tuple) and len(loaded) == 2:
        if isinstance(loaded[0], tuple) and isinstance(loaded[1], tuple):
            data = Federation.from_clients({client: loaded[0]}, test={client: loaded[1]}, **known)[0]
        else:
            samples = Federation.from_clients({client: loaded}, test={client: loaded}, **known)[0].train
            train, test = _split(samples, client, settings.test_fraction, settings.seed, "test split", position)
            data = ClientData(client, train, test)
    else:
        raise FedapmError(
            f"the data of client {client} should be ClientData or a pair (x, y), not {type(loaded).__name__}."
        )
    if settings.validation:
        train, validation = _split(data.train, client, settings.validation, settings.seed, "validation split", position)
        data = ClientData(client, train, validation)
    return data


def _split(
    samples: Samples, client: str, fraction: float, seed: int, purpose: str, position: int
) -> tuple[Samples, Samples]:
    """Split samples in two, as in a federation where the client has this position."""
    if len(samples) < 2:
        raise FedapmError(f"client {client} has {len(samples)} sample(s), too few to train and test.")
    return split_samples(samples, fraction, numpy_generator(seed, purpose, position))


def _with_federation(data: ClientData, settings: DataSettings) -> tuple[ClientData, Federation]:
    return data, Federation([data], settings.name, class_names=settings.class_names)
