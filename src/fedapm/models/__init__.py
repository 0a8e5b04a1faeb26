"""The networks: plain modules that name their stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fedapm.errors import FedapmError, did_you_mean
from fedapm.models.cnn import CNN
from fedapm.models.digits import DigitsNet

MODELS: dict[str, type[nn.Module]] = {"digits": DigitsNet, "cnn": CNN}


def factory(name: str, classes: int, options: Mapping[str, Any]) -> Callable[[], nn.Module]:
    """A function that makes a network for so many classes."""
    if name not in MODELS:
        raise FedapmError(f"unknown model {name!r}; {did_you_mean(name, MODELS)}")
    kind = MODELS[name]
    known = [p for p in inspect.signature(kind).parameters if p != "classes"]
    for option in options:
        if option not in known:
            raise FedapmError(f"unknown setting 'model.options.{option}' of {name}; {did_you_mean(option, known)}")
    return lambda: kind(classes=classes, **options)


__all__ = ["CNN", "MODELS", "DigitsNet", "factory"]
