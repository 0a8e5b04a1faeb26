"""Transform: what turns raw inputs into those of the network, kept by its name or as a scripted module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.core.imports import described, load_object
from fedapm.core.torchscript import from_bytes, scripted, to_bytes
from fedapm.errors import FedapmError

Inputs = tuple[Tensor, ...]
Form = tuple[tuple[int, ...], str]
"""The shape of one sample's input and its type."""
SETTING = "data.transform"


@dataclass(frozen=True)
class Transform:
    """What turns raw inputs into those of the network."""

    function: Callable[..., Any]
    """It takes all inputs, with one row a sample, and returns the tensor or the tuple of tensors for the network."""
    name: str = ""
    """Where the function is found again, as ``module:name``; empty for a scripted module, which is stored itself."""
    raw: tuple[Form, ...] = ()
    """The shape and type of each raw input, once it is known."""

    @classmethod
    def of(cls, given: Any) -> Transform:
        """The transform that a module or a function is.

        Args:
            given: A module, which is scripted and stored; or a function at the top of a module, stored by its name.

        Raises:
            FedapmError: It can neither be scripted nor found again by its name.
        """
        if isinstance(given, Transform):
            return given
        if isinstance(given, nn.Module):
            return cls(_frozen(given))
        if not callable(given):
            raise FedapmError(f"a transform is an nn.Module or a function, not {type(given).__name__}.")
        module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", "")
        found_again = getattr(sys.modules.get(str(module)), name, None) is given and module != "__main__"
        if not found_again:
            shown = name or type(given).__name__
            raise FedapmError(
                f"the transform {shown} could not be found again by its name; write it as an nn.Module, or as a "
                "function at the top of a module that can be imported."
            )
        return cls(given, f"{module}:{name}")

    @classmethod
    def named(cls, reference: str, folder: Path | None) -> Transform:
        """The transform that a setting names.

        Args:
            reference: A function, a module of torch or a class of one without arguments, as ``module:name``.
            folder: Where it is looked for first.
        """
        found = load_object(reference, folder, SETTING)
        if isinstance(found, type):
            try:
                found = found()
            except Exception as error:
                raise FedapmError(f"{SETTING} = {reference!r}: making it failed with {described(error)}") from error
        return cls(_frozen(found)) if isinstance(found, nn.Module) else cls(found, reference)

    @classmethod
    def stored(cls, about: Mapping[str, Any], content: bytes | None, folder: Path | None = None) -> Transform:
        """The transform that a file describes.

        Args:
            about: What :meth:`describe` gave.
            content: What :meth:`content` gave.
            folder: Where a function is looked for.
        """
        raw = tuple((tuple(map(int, one["shape"])), str(one["dtype"])) for one in about.get("inputs", ()))
        if content is not None:
            return cls(from_bytes(content), raw=raw)
        reference = str(about["name"])
        return cls(load_object(reference, folder, "transform"), reference, raw)

    @property
    def module(self) -> nn.Module | None:
        """The scripted module; None for a function."""
        return self.function if isinstance(self.function, nn.Module) else None

    def content(self) -> bytes | None:
        """The scripted module as the content of a file; None for a function, which is found by its name."""
        return to_bytes(self.function) if self.module is not None else None

    def describe(self) -> dict[str, Any]:
        """What is written about it: its name, if it has one, and the raw inputs."""
        return {
            "name": self.name or None,
            "inputs": [{"shape": list(shape), "dtype": dtype} for shape, dtype in self.raw],
        }

    def __call__(self, inputs: Inputs) -> Inputs:
        """The network's inputs for raw ones, with one row a sample.

        Raises:
            FedapmError: It fails, or loses samples.
        """
        title = self.name or "the transform"
        try:
            with torch.no_grad():
                made = self.function(*inputs)
        except FedapmError:
            raise
        except Exception as error:
            shapes = ", ".join(str(tuple(values.shape)) for values in inputs)
            raise FedapmError(f"{title} fails on inputs of shape {shapes} with {described(error)}") from error
        outputs = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        tensors = tuple(values if isinstance(values, Tensor) else torch.as_tensor(values) for values in outputs)
        for values in tensors:
            if values.dim() == 0 or len(values) != len(inputs[0]):
                raise FedapmError(
                    f"{title} makes shape {tuple(values.shape)} of {len(inputs[0])} samples; it should keep one row a "
                    "sample."
                )
        return tensors


def check_by_sample(transform: Transform, inputs: Inputs) -> None:
    """Refuse a transform that depends on which samples it sees together.

    Args:
        transform: The transform.
        inputs: Some raw samples.
    """
    together = transform(tuple(values[:8] for values in inputs))
    alone = transform(tuple(values[:1] for values in inputs))
    if not all(torch.allclose(a, b[:1], atol=1e-5, equal_nan=True) for a, b in zip(alone, together, strict=True)):
        raise FedapmError(
            f"{transform.name or 'the transform'} gives a sample other values when it is alone: a transform must not "
            "use the mean or spread of the samples it is given; compute them once and keep them in it."
        )


def _frozen(module: nn.Module) -> nn.Module:
    """A scripted copy in evaluation mode, whose numbers no longer change."""
    try:
        made: nn.Module = scripted(deepcopy(module).cpu().eval())
    except Exception as error:  # the compiler raises many types
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise FedapmError(
            f"the transform {type(module).__name__} cannot be stored as TorchScript ({reason.rstrip(':. ')}); write it "
            "with operations of torch and type hints, or give a function by its name."
        ) from None
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return made
