"""What a network wants to be called with, and how inputs that it refuses can be made to fit."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.core.imports import described
from fedapm.core.samples import Samples

Layer = tuple[str, nn.Module, tuple[Any, ...]]
"""A layer's name, the layer, and what it was given."""


def input_mismatch(module: nn.Module, samples: Samples, at: Layer | None, error: Exception) -> str:
    """What a network wants instead of some samples, and the cure, as the second half of a sentence.

    Args:
        module: The network.
        samples: The samples it was called with.
        at: The layer in which it failed, if it was one.
        error: What it raised.
    """
    kind = type(module).__name__
    if (counts := _input_counts(module)) is not None:
        least, most = counts
        given = len(samples.inputs)
        if not least <= given <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            return (
                f"{kind} takes {wanted} input(s), but the data has {given}; give x as a tuple with one array for each."
            )
    if at is None:
        return f"{kind} failed with {described(error)}"
    name, layer, given_to_layer = at
    values = next((value for value in given_to_layer if isinstance(value, Tensor)), None)
    label = f"{kind}'s layer {name!r}" if name else kind
    if values is None:
        return f"{label} failed with {described(error)}"
    return f"{label} " + (_cure(layer, values, samples) or f"failed with {described(error)}")


def _cure(layer: nn.Module, values: Tensor, samples: Samples) -> str | None:
    """What a layer wants of its input and how to give it; None where that is not the trouble."""
    shape, first = tuple(values.shape), values.shape == samples.inputs[0].shape
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if values.is_floating_point():
            return f"looks up whole numbers, not {_dtype(values)}; give x.astype(int)."
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= layer.num_embeddings:
            return (
                f"looks up numbers from 0 to {layer.num_embeddings - 1}, but the data has {low if low < 0 else high}."
            )
        return None
    weight = next((p for p in layer.parameters(recurse=False)), None)
    if weight is not None and values.dtype != weight.dtype:
        return (
            f"computes in {_dtype(weight)} and was given {_dtype(values)}; convert one of them, as in "
            f"{'x.float()' if weight.dtype == torch.float32 else 'network.float()'}."
        )
    if isinstance(layer, nn.Linear):
        return _linear(layer, values, shape, first)
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return _convolution(layer, shape, first)
    if isinstance(layer, nn.RNNBase):
        return _recurrent(layer, shape)
    features = getattr(layer, "num_features", None)
    if features is not None and len(shape) > 1 and shape[1] != features:
        return f"normalizes {features} features, but was given {shape[1]} (shape {shape})."
    return None


def _linear(layer: nn.Linear, values: Tensor, shape: tuple[int, ...], first: bool) -> str | None:
    if len(shape) == 1 and first:
        return (
            f"takes rows of {layer.in_features} features, but each sample is a single number; x has one row a sample."
        )
    if shape and shape[-1] == layer.in_features:
        return None
    text = f"takes {layer.in_features} features, but was given {shape[-1]} (shape {shape})"
    if values[0].numel() == layer.in_features:
        return f"{text}; flatten the samples, as in x.reshape(len(x), -1)."
    return f"{text}; make it nn.Linear({shape[-1]}, …), or give it samples of {layer.in_features} features."


def _convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, shape: tuple[int, ...], first: bool) -> str | None:
    dimensions = len(layer.kernel_size)
    wanted = (
        ("length",) if dimensions == 1 else ("height", "width") if dimensions == 2 else ("depth", "height", "width")
    )
    text = f"takes samples of shape ({layer.in_channels} channels, {', '.join(wanted)})"
    if len(shape) == dimensions + 1:
        add = "x[:, None]" if first else "unsqueeze(1)"
        return f"{text}; the dimension of channels is missing: give {add}."
    if len(shape) != dimensions + 2:
        return f"{text}, but was given the shape {shape}, the first dimension being samples."
    if shape[1] == layer.in_channels:
        return f"{text}, but {shape[2:]} is smaller than its kernel {tuple(layer.kernel_size)}; use a smaller kernel."
    if shape[-1] == layer.in_channels:
        order = "0, 2, 1" if dimensions == 1 else "0, 3, 1, 2" if dimensions == 2 else "0, 4, 1, 2, 3"
        return f"{text}; the data has its channels last: give x.transpose({order})."
    return f"{text}, but was given {shape[1]} channels; change the layer's first argument or the data."


def _recurrent(layer: nn.RNNBase, shape: tuple[int, ...]) -> str | None:
    text = f"takes sequences of shape (length, {layer.input_size})"
    if len(shape) == 2:
        return f"{text}; the dimension of the sequence is missing: give x[:, :, None] or x[:, None, :]."
    if len(shape) == 3 and shape[-1] != layer.input_size:
        swapped = (
            "; the data has them the other way round: give x.transpose(0, 2, 1)" if shape[1] == layer.input_size else ""
        )
        return f"{text}, but was given {shape[1:]}{swapped}."
    return None


def _input_counts(module: nn.Module) -> tuple[int, int] | None:
    """How few and how many inputs a network's forward takes; None where it takes any number."""
    if isinstance(module, nn.Sequential):
        return 1, 1
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in positional), len(positional)


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")
