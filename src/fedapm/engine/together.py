"""Together: a network computed for several clients at once, each with parameters of its own.

Networks of fully connected layers become batched matrix products. All others go through ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn import functional

Parameters = Mapping[str, Tensor]
Layer = Callable[[Parameters, frozenset[str], Tensor], Tensor]
Forward = Callable[[Parameters, frozenset[str], Sequence[Tensor]], Any]
"""Of parameters by name, which of them have a first dimension of clients, and inputs of (clients, samples, …)."""

ELEMENTWISE = {nn.ReLU: torch.relu, nn.Tanh: torch.tanh, nn.Sigmoid: torch.sigmoid, nn.Identity: lambda t: t}
METHODS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
FUNCTIONS = {torch.relu, torch.tanh, torch.sigmoid, functional.relu}


def forward(module: nn.Module) -> Forward:
    """The module's forward pass for several clients."""
    return _linear(module) or _vmapped(module)


def linear(module: nn.Module) -> bool:
    """Whether the network is nothing but fully connected layers and simple functions."""
    return _linear(module) is not None


def _vmapped(module: nn.Module) -> Forward:
    def run(parameters: Parameters, stacked: frozenset[str], inputs: Sequence[Tensor]) -> Any:
        def one(own: Parameters, *parts: Tensor) -> Any:
            return functional_call(module, dict(own), parts)

        dimensions = {name: 0 if name in stacked else None for name in parameters}
        return torch.vmap(one, in_dims=(dimensions, *[0] * len(inputs)))(dict(parameters), *inputs)

    return run


def _linear(module: nn.Module) -> Forward | None:
    """Batched matrix products, where the network is nothing but fully connected layers and simple functions."""
    try:
        graph = fx.symbolic_trace(module).graph
    except Exception:  # a forward pass that cannot be traced may raise anything
        return None
    parts = dict(module.named_modules())
    steps: list[Layer] = []
    last: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "output":
            return _chain(steps) if node.args[0] is last else None
        if last is not None and (not node.args or node.args[0] is not last):
            return None
        step = _step(node, parts) if node.op != "placeholder" else None
        if node.op == "placeholder" and last is not None:
            return None
        if node.op != "placeholder":
            if step is None:
                return None
            steps.append(step)
        last = node
    return None


def _chain(steps: Sequence[Layer]) -> Forward:
    def run(parameters: Parameters, stacked: frozenset[str], inputs: Sequence[Tensor]) -> Tensor:
        (value,) = inputs
        for step in steps:
            value = step(parameters, stacked, value)
        return value

    return run


def _step(node: fx.Node, parts: Mapping[str, nn.Module]) -> Layer | None:
    if node.op == "call_module":
        part = parts[str(node.target)]
        if type(part) is nn.Linear:
            return _layer(str(node.target), part.bias is not None)
        if type(part) is nn.Flatten and part.start_dim == 1 and part.end_dim == -1:
            return lambda _, __, value: value.flatten(2)
        simple = ELEMENTWISE.get(type(part))
    elif node.op == "call_method":
        if node.target == "flatten" and node.args[1:] == (1,) and not node.kwargs:
            return lambda _, __, value: value.flatten(2)
        simple = METHODS.get(str(node.target)) if len(node.args) == 1 else None
    elif node.op == "call_function":
        if node.target is torch.flatten and node.args[1:] == (1,) and not node.kwargs:
            return lambda _, __, value: value.flatten(2)
        simple = node.target if node.target in FUNCTIONS and len(node.args) == 1 else None
    else:
        simple = None
    if simple is None:
        return None
    function: Callable[[Tensor], Tensor] = simple
    return lambda _, __, value: function(value)


def _layer(name: str, bias: bool) -> Layer:
    weight_name, bias_name = f"{name}.weight", f"{name}.bias"

    def run(parameters: Parameters, stacked: frozenset[str], value: Tensor) -> Tensor:
        weight, offset = parameters[weight_name], parameters[bias_name] if bias else None
        if weight_name not in stacked:
            # one matrix for all: one large product
            found = functional.linear(value, weight)
        elif offset is not None and bias_name in stacked:
            return torch.baddbmm(offset.unsqueeze(1), value, weight.transpose(1, 2))
        else:
            found = torch.bmm(value, weight.transpose(1, 2))
        if offset is None:
            return found
        return found + (offset.unsqueeze(1) if bias_name in stacked else offset)

    return run
