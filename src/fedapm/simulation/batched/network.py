"""Together: a network and its gradient computed for several clients at once, each with parameters of its own.

Networks of fully connected layers become batched matrix products. All others go through ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn import functional

from fedapm.simulation.batched.layers import (
    IDENTITY,
    RELU,
    SIGMOID,
    TANH,
    BatchedNames,
    Flatten,
    Grads,
    Layer,
    Linear,
    Parameters,
)
from fedapm.simulation.batched.losses import BatchedLoss

MODULES = {nn.ReLU: RELU, nn.Tanh: TANH, nn.Sigmoid: SIGMOID, nn.Identity: IDENTITY}
TENSOR_METHODS = {"relu": RELU, "tanh": TANH, "sigmoid": SIGMOID}
FUNCTIONS = {torch.relu: RELU, torch.tanh: TANH, torch.sigmoid: SIGMOID, functional.relu: RELU}


class BatchedNetwork(Protocol):
    """A network's forward and backward pass for several clients. Inputs are (clients, samples, …)."""

    def cut(self, trained: Collection[str]) -> tuple[BatchedNetwork | None, BatchedNetwork]:
        """The part that training does not change, if it can be had by itself, and the rest."""

    def outputs(self, parameters: Parameters, batched: BatchedNames, inputs: Sequence[Tensor]) -> Any:
        """What the network says."""

    def gradient(
        self,
        parameters: Parameters,
        batched: BatchedNames,
        trained: Sequence[str],
        inputs: Sequence[Tensor],
        losses: BatchedLoss,
    ) -> tuple[list[Tensor], Tensor]:
        """Every client's gradient of its loss in the trained parameters, and the losses."""


def batched_network(module: nn.Module) -> BatchedNetwork:
    """The module for several clients."""
    return _linear(module) or VmapNetwork(module)


def is_linear_chain(module: nn.Module) -> bool:
    """Whether the network is nothing but fully connected layers and simple functions."""
    return _linear(module) is not None


@dataclass(frozen=True)
class VmapNetwork:
    """Any network that vmap takes."""

    module: nn.Module

    def cut(self, trained: Collection[str]) -> tuple[BatchedNetwork | None, BatchedNetwork]:
        """It is one piece."""
        del trained
        return None, self

    def outputs(self, parameters: Parameters, batched: BatchedNames, inputs: Sequence[Tensor]) -> Any:
        """The module mapped over clients."""

        def one(own: Parameters, *parts: Tensor) -> Any:
            return functional_call(self.module, dict(own), parts)

        dimensions = {name: 0 if name in batched else None for name in parameters}
        return torch.vmap(one, in_dims=(dimensions, *[0] * len(inputs)))(dict(parameters), *inputs)

    def gradient(
        self,
        parameters: Parameters,
        batched: BatchedNames,
        trained: Sequence[str],
        inputs: Sequence[Tensor],
        losses: BatchedLoss,
    ) -> tuple[list[Tensor], Tensor]:
        """By autograd."""
        active = {n: parameters[n].detach().requires_grad_(True) for n in trained}
        client_losses = losses(self.outputs({**parameters, **active}, batched, inputs))
        grads = torch.autograd.grad(client_losses.sum(), [*active.values()], materialize_grads=True, allow_unused=True)
        return list(grads), client_losses.detach()


@dataclass(frozen=True)
class LinearChain:
    """Layers one after the other, with their backward pass written out."""

    layers: tuple[Layer, ...]

    def cut(self, trained: Collection[str]) -> tuple[BatchedNetwork | None, BatchedNetwork]:
        """Before and from the first layer that is trained."""
        place = next((k for k, layer in enumerate(self.layers) if set(layer.names) & set(trained)), 0)
        return (LinearChain(self.layers[:place]) if place else None), LinearChain(self.layers[place:])

    def outputs(self, parameters: Parameters, batched: BatchedNames, inputs: Sequence[Tensor]) -> Tensor:
        """The last layer's."""
        (x,) = inputs
        for layer in self.layers:
            x = layer.forward(parameters, batched, x)
        return x

    @torch.no_grad()
    def gradient(
        self,
        parameters: Parameters,
        batched: BatchedNames,
        trained: Sequence[str],
        inputs: Sequence[Tensor],
        losses: BatchedLoss,
    ) -> tuple[list[Tensor], Tensor]:
        """By the chain rule, back to the first layer that is trained."""
        values = [*inputs]
        for layer in self.layers:
            values.append(layer.forward(parameters, batched, values[-1]))
        client_losses, dy = losses.slope(values[-1])
        grads = Grads()
        for k in range(len(self.layers) - 1, -1, -1):
            layer, x = self.layers[k], values[k]
            if any(n in trained for n in layer.names):
                for name, grad in layer.grads(x, dy).items():
                    grads[name] = grads[name] + grad if name in grads else grad
            if k:
                dy = layer.back(parameters, batched, x, values[k + 1], dy)
        return [grads[n] if n in grads else torch.zeros_like(parameters[n]) for n in trained], client_losses


def _linear(module: nn.Module) -> LinearChain | None:
    """The chain that the network is, if it is nothing but fully connected layers and simple functions."""
    try:
        graph = fx.symbolic_trace(module).graph
    except Exception:  # a forward pass that cannot be traced may raise anything
        return None
    parts = dict(module.named_modules())
    layers: list[Layer] = []
    last: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "output":
            return LinearChain(tuple(layers)) if node.args[0] is last else None
        if last is not None and (not node.args or node.args[0] is not last):
            return None
        if node.op == "placeholder":
            if last is not None:
                return None
        else:
            layer = _layer(node, parts)
            if layer is None:
                return None
            layers.append(layer)
        last = node
    return None


def _layer(node: fx.Node, parts: Mapping[str, nn.Module]) -> Layer | None:
    if node.op == "call_module":
        part = parts[str(node.target)]
        if type(part) is nn.Linear:
            return Linear(str(node.target), part.bias is not None)
        if type(part) is nn.Flatten and part.start_dim == 1 and part.end_dim == -1:
            return Flatten()
        return MODULES.get(type(part))
    flat = node.args[1:] == (1,) and not node.kwargs
    if node.op == "call_method":
        if node.target == "flatten" and flat:
            return Flatten()
        return TENSOR_METHODS.get(str(node.target)) if len(node.args) == 1 else None
    if node.op == "call_function":
        if node.target is torch.flatten and flat:
            return Flatten()
        return FUNCTIONS.get(node.target) if len(node.args) == 1 else None  # type: ignore[arg-type]
    return None
