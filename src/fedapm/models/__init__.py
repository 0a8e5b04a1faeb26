"""The networks: plain modules that name their stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from fedapm.errors import FedapmError, did_you_mean
from fedapm.models.cnn import CNN
from fedapm.models.digits import DigitsNet

MODELS: dict[str, type[nn.Module]] = {"digits": DigitsNet, "cnn": CNN}


def factory(
    name: str, classes: int, options: Mapping[str, Any], shapes: Sequence[Sequence[int]] = ()
) -> Callable[[], nn.Module]:
    """A function that makes a network for so many classes and, where it can be made to measure, for such inputs.

    A network that comes in several sizes says which one the inputs of a data set need by a class method
    ``fitting(shapes)``, which gives arguments. Options that were named win.
    """
    if name not in MODELS:
        raise FedapmError(f"unknown model {name!r}; {did_you_mean(name, MODELS)}")
    kind = MODELS[name]
    known = [p for p in inspect.signature(kind).parameters if p != "classes"]
    for option in options:
        if option not in known:
            raise FedapmError(f"unknown setting 'model.options.{option}' of {name}; {did_you_mean(option, known)}")
    fitting: Callable[[Sequence[Sequence[int]]], dict[str, Any]] | None = getattr(kind, "fitting", None)
    arguments = {**(fitting(shapes) if fitting is not None and shapes else {}), **options}
    return lambda: kind(classes=classes, **arguments)


__all__ = ["CNN", "MODELS", "DigitsNet", "factory"]
