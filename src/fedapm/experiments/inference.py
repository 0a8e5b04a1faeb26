"""Inference: from samples as a user has them to what a client's network gives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedapm.core.network import Network
from fedapm.core.samples import Samples
from fedapm.core.split import Split
from fedapm.core.transform import Transform
from fedapm.data.arrays import Arrays, as_inputs
from fedapm.errors import FedapmError


def infer(module: nn.Module, x: Arrays, client: int | str, transform: Transform | None, types: Sequence[str]) -> Tensor:
    """What a client's network gives for some samples.

    Args:
        module: The network.
        x: An array or tensor with one row a sample, or a tuple of them for a network with several inputs.
        client: The client, for messages.
        transform: What turns them into inputs of the network, if anything.
        types: The types of the inputs that it was trained with; none where that is not known.

    Returns:
        Its outputs, one row a sample.
    """
    inputs = as_inputs(x)
    if transform is not None:
        inputs = as_inputs(transform(_typed(inputs, [dtype for _, dtype in transform.raw])))
    inputs = _typed(inputs, types)
    samples = Samples(inputs, torch.zeros(len(inputs[0])))
    if not len(samples):
        raise FedapmError("there are no samples to predict.")
    try:
        return Network(module, Split((), ()), nn.functional.cross_entropy).predict(samples)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = ", ".join(str(tuple(values.shape)) for values in inputs)
        reason = str(error).splitlines()[0].rstrip(".")
        raise FedapmError(
            f"the network of client {client} cannot be called with inputs of shape {shapes} ({reason})."
        ) from error


def _typed(inputs: tuple[Tensor, ...], types: Sequence[str]) -> tuple[Tensor, ...]:
    if len(types) != len(inputs):
        return inputs
    return tuple(values.to(getattr(torch, name)) for values, name in zip(inputs, types, strict=True))
