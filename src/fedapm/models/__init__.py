"""The networks: plain modules that declare which layers a preset makes personal (``stages``)."""

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
from fedapm.models.images import ImageClassifier
from fedapm.models.mlp import MLP
from fedapm.models.mm_action import MMActionClassifier
from fedapm.models.resnet import ResNet18
from fedapm.models.text import TextClassifier

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
        "mlp": MLP,
        "text": TextClassifier,
        "image": ImageClassifier,
    },
)
"""The networks by name, built in or added through the entry points ``fedapm.models``."""


def factory(
    name: str, classes: int, options: Mapping[str, Any], shapes: Sequence[Sequence[int]] = ()
) -> Callable[[], nn.Module]:
    """A function that builds a network for a data set.

    A network whose size depends on its inputs has a class method ``arguments_for(shapes)`` that returns the arguments
    for them, and may describe the inputs it takes in a class attribute ``input_description``.

    Args:
        name: The network's name in :data:`MODELS`.
        classes: The number of classes.
        options: Arguments of the network; they take precedence over those for the shapes.
        shapes: The shapes of one sample's inputs.

    Raises:
        FedapmError: The network or an option is unknown, or the inputs do not suit the network.
    """
    network = MODELS.find(name)
    known = [p for p in inspect.signature(network).parameters if p != "classes"]
    for option in options:
        if option not in known:
            raise FedapmError(f"unknown setting 'model.options.{option}' of {name}; {did_you_mean(option, known)}")
    arguments = {**_arguments_for(name, network, shapes), **options}

    def make() -> nn.Module:
        try:
            return network(classes=classes, **arguments)
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            assignments = ", ".join(f"{option} = {value!r}" for option, value in options.items())
            reason = str(error).splitlines()[0].rstrip(".")
            raise FedapmError(
                f"no {name} can be built with model.options {assignments or 'as they are'} ({reason})."
            ) from None

    return make


def _arguments_for(name: str, network: type[nn.Module], shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    arguments_for: Callable[[Sequence[Sequence[int]]], dict[str, Any]] | None = getattr(network, "arguments_for", None)
    if arguments_for is None or not shapes:
        return {}
    try:
        return arguments_for(shapes)
    except ValueError:
        description = getattr(network, "input_description", "other inputs")
        listed = ", ".join(f"({', '.join(map(str, shape))})" for shape in shapes if len(shape) > 0)
        raise FedapmError(
            f"the model {name} takes {description}, but the data has inputs of the shapes {listed}; choose "
            "another model (see: fedapm list models)."
        ) from None


__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "DigitsNet",
    "HARClassifier",
    "ImageClassifier",
    "ImageTextClassifier",
    "MMActionClassifier",
    "ResNet18",
    "TextClassifier",
    "factory",
]
