"""The networks: plain modules that name their stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from fedapm.core.registry import Registry
from fedapm.errors import FedapmError, did_you_mean
from fedapm.models.cnn import CNN
from fedapm.models.digits import DigitsNet
from fedapm.models.har import HARClassifier
from fedapm.models.image_text import ImageTextClassifier
from fedapm.models.mm_action import MMActionClassifier
from fedapm.models.resnet import ResNet18

MODELS: Registry[type[nn.Module]] = Registry(
    "model",
    "fedapm.models",
    {
        "digits": DigitsNet,
        "cnn": CNN,
        "image-text": ImageTextClassifier,
        "har": HARClassifier,
        "mm-action": MMActionClassifier,
        "resnet18": ResNet18,
    },
)
"""The networks by name, built in or added through the entry points ``fedapm.models``."""


def factory(
    name: str, classes: int, options: Mapping[str, Any], shapes: Sequence[Sequence[int]] = ()
) -> Callable[[], nn.Module]:
    """A function that makes a network for so many classes and, where it can be made to measure, for such inputs.

    A network that comes in several sizes says which one the inputs of a data set need by a class method
    ``fitting(shapes)``, which gives arguments. Options that were named win.
    """
    kind = MODELS.find(name)
    known = [p for p in inspect.signature(kind).parameters if p != "classes"]
    for option in options:
        if option not in known:
            raise FedapmError(f"unknown setting 'model.options.{option}' of {name}; {did_you_mean(option, known)}")
    arguments = {**_measured(name, kind, shapes), **options}

    def make() -> nn.Module:
        try:
            return kind(classes=classes, **arguments)
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            given = ", ".join(f"{option} = {value!r}" for option, value in options.items())
            reason = str(error).splitlines()[0].rstrip(".")
            raise FedapmError(
                f"no {name} can be made with model.options {given or 'as they are'} ({reason})."
            ) from None

    return make


def _measured(name: str, kind: type[nn.Module], shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The arguments that a network's inputs ask for."""
    fitting: Callable[[Sequence[Sequence[int]]], dict[str, Any]] | None = getattr(kind, "fitting", None)
    if fitting is None or not shapes:
        return {}
    try:
        return fitting(shapes)
    except ValueError:
        there = ", ".join(f"({', '.join(map(str, shape))})" for shape in shapes if len(shape) > 0)
        raise FedapmError(
            f"the model {name} takes {getattr(kind, 'takes', 'other inputs')}, but the data has inputs of the shapes "
            f"{there}; choose another model (see: fedapm list models)."
        ) from None


__all__ = [
    "CNN",
    "MODELS",
    "DigitsNet",
    "HARClassifier",
    "ImageTextClassifier",
    "MMActionClassifier",
    "ResNet18",
    "factory",
]
