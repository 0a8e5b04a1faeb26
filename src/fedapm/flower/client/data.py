"""A node's own data: from the user's function, from a file, or its part of a named data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedapm.core.random import numpy_generator
from fedapm.core.samples import Samples
from fedapm.data.federation import ClientData, Federation, split_test
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.settings import DataSettings
from fedapm.flower.settings import OWN

Loader = Callable[[str], Any]
"""Of a client's id, its data: ClientData, or a pair (x, y) to be divided into training and test."""


def own_data(
    settings: DataSettings, client: str, position: int, loader: Loader | None, file: Path | None
) -> tuple[ClientData, Federation]:
    """A client's data, and a federation of it alone that knows how many classes and which inputs there are."""
    if loader is not None:
        return _alone(_of(loader(client), client, position, settings), settings)
    if file is not None:
        return _alone(_of(read_file(file), client, position, settings), settings)
    if settings.name == OWN:
        raise FedapmError(
            f"client {client} has no data: start its node with data-file, or give the app a data function."
        )
    everyone = build.federation(settings)
    ids = [data.id for data in everyone.clients]
    # the parts of a partition are numbered; those of a natural one have names
    place = ids.index(client) if client in ids else position
    if place >= len(ids) or (settings.partition == "natural" and client not in ids):
        raise FedapmError(f"{settings.name} has no part for client {client!r}; it has {len(ids)} clients.")
    return replace(everyone[place], id=client), everyone


def read_file(path: Path) -> tuple[Any, ...]:
    """The arrays of an .npz file: x and y, and x_test and y_test where the file has them."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise FedapmError(f"{path} does not exist; data-file names an .npz file with the arrays x and y.") from None
    except (OSError, ValueError, EOFError) as error:
        raise FedapmError(f"{path} is not an .npz file of plain arrays ({str(error).splitlines()[0]}).") from None
    lacking = [name for name in ("x", "y") if name not in arrays]
    if lacking:
        there = ", ".join(arrays) or "nothing"
        raise FedapmError(f"{path} lacks the array {lacking[0]!r}; it holds {there}.")
    pair = arrays["x"], arrays["y"]
    return (pair, (arrays["x_test"], arrays["y_test"])) if {"x_test", "y_test"} <= set(arrays) else pair


def _of(given: Any, client: str, position: int, settings: DataSettings) -> ClientData:
    if isinstance(given, ClientData):
        data = replace(given, id=client)
    elif isinstance(given, tuple) and len(given) == 2:
        if isinstance(given[0], tuple) and isinstance(given[1], tuple):
            data = Federation.from_clients({client: given[0]}, test={client: given[1]})[0]
        else:
            whole = Federation.from_clients({client: given}, test={client: given})[0].train
            train, test = divided(whole, client, settings.test_fraction, settings.seed, "test split", position)
            data = ClientData(client, train, test)
    else:
        raise FedapmError(
            f"the data of client {client} should be ClientData or a pair (x, y), not {type(given).__name__}."
        )
    if settings.validation:
        train, judged = divided(data.train, client, settings.validation, settings.seed, "validation split", position)
        data = ClientData(client, train, judged)
    return data


def divided(
    samples: Samples, client: str, fraction: float, seed: int, purpose: str, position: int
) -> tuple[Samples, Samples]:
    """Samples in two parts, the same two as in a federation where the client stands at this position."""
    if len(samples) < 2:
        raise FedapmError(f"client {client} has {len(samples)} sample(s), too few to train and test.")
    stream = numpy_generator(seed, purpose, position)
    index, labels = np.arange(len(samples)), samples.targets.numpy()
    first, second = split_test(index, labels, samples.classified, fraction, stream)
    return samples[torch.as_tensor(first)], samples[torch.as_tensor(second)]


def _alone(data: ClientData, settings: DataSettings) -> tuple[ClientData, Federation]:
    return data, Federation([data], settings.name)
