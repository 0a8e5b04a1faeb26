"""Data and networks of the user's own that settings name: files, and functions in the user's modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedapm.adapters import adapted
from fedapm.core.imports import call, load_object, parameters_of
from fedapm.core.samples import Samples
from fedapm.data import ClientData, Federation
from fedapm.data.own import OwnData, check_purposes, digest, fingerprint, read_own
from fedapm.errors import FedapmError
from fedapm.experiments.settings import DataSettings, ModelSettings
from fedapm.simulation.problem import Model, model_factory

DEFAULTS: Mapping[str, Mapping[str, Any]] = {"data": {"partition": "natural", "minimum": 1}, "model": {"split": "auto"}}
"""What holds for data of one's own where nothing is said: clients are given, and the split is searched."""


def own_name(table: Mapping[str, Any]) -> str:
    """What to call data of the user's own: the file's name without its ending, or the module's."""
    if table.get("file") is not None:
        return Path(str(table["file"])).stem
    return str(table["factory"]).partition(":")[0].rpartition(".")[2] or "own data"


def checked_digest(data: DataSettings) -> str:
    """The digest of the user's file; an error if the settings were made with another one."""
    path = data.path
    if data.digest is not None and not path.exists():
        # on Flower a server need not have the data
        return data.digest
    found = _digest(path, _stamp(path), data.one_by_one)
    if data.digest not in (None, found):
        raise FedapmError(
            f"{path} has changed since these settings were recorded (data.digest); put the old file back, or leave "
            "data.digest out."
        )
    return found


def own_file(data: DataSettings) -> OwnData:
    """The samples of the user's file."""
    checked_digest(data)
    return read_own(data.path, data.columns, data.class_names)


def lazy_federation(data: DataSettings) -> Federation:
    """The clients of the user's file, which are read when they take part."""
    checked_digest(data)
    check_purposes(data.columns)
    if "classes" in data.columns:
        raise FedapmError("data.columns.classes: give the names of the classes as data.class_names.")
    columns: dict[str, Any] = dict(data.columns)
    clients = Federation.lazy(
        data.path,
        **columns,
        table=data.table,
        class_names=data.class_names,
        test_fraction=data.test_fraction,
        seed=data.seed,
        name=data.name,
        memory=data.memory << 20,
    )
    if data.clients is not None and data.clients > len(clients):
        raise FedapmError(f"data.clients = {data.clients}, but {data.path} has {len(clients)}.")
    return clients if data.clients is None else clients.first(data.clients)


def own_federation(data: DataSettings, client: str | None = None) -> Any:
    """What the user's function returns.

    Args:
        data: The settings that name it.
        client: On Flower, the client whose data is wanted: a function with a parameter ``client`` may return that
            client's data alone.

    Returns:
        A federation; for one client also ClientData or a pair (x, y).
    """
    said, folder = str(data.factory), _folder(data.folder)
    function = load_object(said, folder, "data.factory")
    arguments: dict[str, Any] = {"seed": data.seed, "test_fraction": data.test_fraction, "folder": folder}
    alone = client is not None and any(p.name == "client" for p in parameters_of(function))
    if alone:
        arguments["client"] = client
    made = call(function, arguments, data.options, f"data.factory = {said!r}", "data.options")
    if isinstance(made, Federation) or (alone and isinstance(made, ClientData | tuple)):
        return made
    raise FedapmError(f"data.factory = {said!r} should return a fedapm.Federation, not {_article(made)}.")


def own_network(model: ModelSettings, classes: int, shapes: Sequence[Sequence[int]]) -> Model:
    """A function that makes the user's network, of a client's data where it has a parameter ``client``.

    Args:
        model: The settings that name it.
        classes: The number of classes.
        shapes: The shapes of one sample's inputs.
    """
    said = str(model.factory)
    make = load_object(said, _folder(model.folder), "model.factory")
    common = {"classes": classes, "shapes": tuple(tuple(shape) for shape in shapes)}

    def made(**more: Any) -> nn.Module:
        module = call(make, common | more, model.options, f"model.factory = {said!r}", "model.options")
        if not isinstance(module, nn.Module):
            raise FedapmError(f"model.factory = {said!r} should make an nn.Module, not {_article(module)}.")
        return module

    def for_client(client: ClientData) -> nn.Module:
        return made(client=client)

    per_client = any(p.name == "client" for p in parameters_of(make)) and "client" not in model.options
    return for_client if per_client else lambda: made()


def with_adapters(network: Model, model: ModelSettings) -> Model:
    """A function that makes a network with the adapters that the settings ask for; the network itself without any.

    Args:
        network: The network, or what makes it.
        model: The settings.
    """
    if (lora := model.lora) is None:
        return network
    make, per_client = model_factory(network)

    def for_client(client: ClientData) -> nn.Module:
        return adapted(make(client), lora, model.adapter_preset, client.id)

    # what makes one network for all does not look at the client
    nobody = ClientData("", Samples((), torch.empty(0)), Samples((), torch.empty(0)))
    return for_client if per_client or lora.differs else lambda: for_client(nobody)


def option_names(model: ModelSettings) -> list[str]:
    """The options that the user's network takes."""
    make = load_object(str(model.factory), _folder(model.folder), "model.factory")
    return [p.name for p in parameters_of(make) if p.name not in ("classes", "shapes", "client")]


def _folder(folder: str | None) -> Path:
    return Path(folder) if folder is not None else Path.cwd()


def _article(made: Any) -> str:
    return "nothing (is there a return?)" if made is None else type(made).__name__


def _stamp(path: Path) -> tuple[float, int]:
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
    stats = [file.stat() for file in files]
    return max((s.st_mtime for s in stats), default=0.0), sum(s.st_size for s in stats)


@lru_cache(maxsize=16)
def _digest(path: Path, stamp: tuple[float, int], one_by_one: bool) -> str:
    del stamp
    return fingerprint(path) if one_by_one else digest(path)
