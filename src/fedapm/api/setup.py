"""What compare and tune have in common: data, network, split and settings, from what the caller gives."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedapm.algorithms import METHODS, PRESETS, hyperparameters, method
from fedapm.core.network import Loss
from fedapm.core.solver import SGDConfig
from fedapm.core.split import Preset
from fedapm.data import Federation
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments import build, compare
from fedapm.experiments.settings import DataSettings, EngineSettings
from fedapm.simulation.problem import Model

T = TypeVar("T")
SIX = ("fedapm", "fedalt", "fedsim", "fedavg", "fedprox", "local")
"""The methods that are compared where none are named."""
SOLVER = tuple(field.name for field in fields(SGDConfig))
TABLES = {"upload": "{'round_to': 'int8'}", "privacy": "{'epsilon': 8.0}"}
"""Keywords that are whole tables of settings, with an example of each."""
ENGINE = tuple(field.name for field in fields(EngineSettings))


@dataclass(frozen=True)
class Setup:
    """Whom to train, what, and with which settings."""

    methods: tuple[str, ...]
    layers: tuple[Mapping[str, Any], ...]
    clients: Federation | None
    """The user's own clients; None where the settings name a data set."""
    model: Model | None
    loss: Loss | None

    @property
    def given(self) -> bool:
        """Whether clients and network are given in Python."""
        return self.clients is not None

    def with_split(self, out: Path | None, progress: bool) -> Setup:
        """The same with a split that is searched on validation data first, if it is to be."""
        first = [compare.plans([name], [0], *self.layers, given=self.given)[0] for name in self.methods]
        searched = next((e for e in first if e.model.split is not None and e.algorithm.takes_split()), None)
        if searched is None:
            return self
        # takes as long to import as all the rest
        from fedapm.tuning.split import with_split

        clients = self.clients or build.federation(searched.data)
        found = with_split(
            searched, clients, out, model=self.model, loss=self.loss, resume=out is not None, progress=progress
        )
        split = {"personal": list(found.model.personal), "shared": list(found.model.shared)}
        return replace(self, layers=(*self.layers, {"model": {k: v for k, v in split.items() if v or k == "personal"}}))


def set_up(
    caller: str,
    data: Federation | str,
    model: Model | None,
    methods: Sequence[str],
    split: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    loss: Loss | None = None,
    validation: float | None = None,
    unseen: float | Sequence[int | str] | None = None,
) -> Setup:
    """Check what the caller gave.

    Args:
        caller: The function's name, for messages.
        data: A federation, or the name of a data set.
        model: The network; None for a named data set's own.
        methods: The methods' names.
        split: What is said of the split; it is searched where nothing is said and the data is the user's own.
        settings: Settings of the solver and the engine, hyperparameters of the methods, whole tables, and tables of
            single methods.
        loss: The loss, if not the usual one.
        validation: The share of training data to judge by.
        unseen: Clients that do not take part.
    """
    if isinstance(methods, str):
        methods = [name.strip() for name in methods.split(",")]
    for name in methods:
        method(name)
    tables: dict[str, Any] = {"model": {k: v for k, v in split.items() if v is not None}}
    known = {*SOLVER, *ENGINE, *TABLES, *(key for name in methods for key in hyperparameters(method(name)))}
    for key, value in settings.items():
        table = "solver" if key in SOLVER else "engine" if key in ENGINE else "algorithm"
        if (key in TABLES or key in METHODS | PRESETS) and isinstance(value, Mapping):
            tables[key] = dict(value)
        elif key in known and key not in TABLES:
            tables.setdefault(table, {})[key] = value
        else:
            if key in TABLES:
                raise FedapmError(f"{caller}() takes a table for {key!r}, such as {TABLES[key]}, not {value!r}.")
            raise FedapmError(f"{caller}() has no keyword {key!r}; {did_you_mean(key, known)}")
    if isinstance(data, str):
        tables["data"] = {"name": data} | ({"validation": validation} if validation else {})
        tables["data"] |= {"unseen": unseen if isinstance(unseen, float) else list(unseen)} if unseen else {}
        return Setup(tuple(methods), (tables,), None, model, loss)
    if model is None:
        raise TypeError(f"{caller}() needs a model for a federation of your own data.")
    clients = data.for_validation(validation, DataSettings.seed) if validation else data
    clients = clients.hold_out(unseen, DataSettings.seed) if unseen else clients
    if not tables["model"]:
        tables["model"] = {"split": "auto"}
    tables["data"] = {"name": data.name}
    return Setup(tuple(methods), (tables,), clients, model, loss)


def temporary_folder() -> Path:
    """A new folder for results that nobody asked to keep."""
    return Path(tempfile.mkdtemp(prefix="fedapm-"))


def removed_with(found: T, folder: Path) -> T:
    """What was found, whose folder is removed when nobody holds it any more."""
    weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found


def split_table(
    personal: Sequence[str] | Literal["auto"] | None,
    shared: Sequence[str],
    frozen: Sequence[str],
    preset: Preset | None,
) -> dict[str, Any]:
    """What is said of the split, as settings."""
    if personal == "auto":
        return {"split": "auto"}
    given = {"shared": list(shared) or None, "frozen": list(frozen) or None, "preset": preset}
    return given | {"personal": None if personal is None else list(personal)}
