"""Together: a network and its gradient computed for several clients at once, each with parameters of its own.

Networks of fully connected layers become batched matrix products. All others go through ``torch.func.vmap``, with
recurrent layers written out step by step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn import functional

from fedapm.core.dropout import Dropout
from fedapm.core.recurrent import written_out
from fedapm.simulation.batched.chain import LinearChain, Step, Steps
from fedapm.simulation.batched.dropout import KNOWN, Masks, dropouts, masked
from fedapm.simulation.batched.layers import (
    IDENTITY,
    RELU,
    SIGMOID,
    TANH,
    BatchedNames,
    Dropping,
    Flatten,
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

    @property
    def draws(self) -> bool:
        """Whether it drops values in training."""

    @property
    def by_sample(self) -> bool:
        """Whether the second dimension of all values in it is known to count samples."""

    def dropping(self, before: Sequence[str], rate: float) -> BatchedNetwork:
        """The same with dropout in front of some layers."""

    def cut(self, trained: Collection[str]) -> tuple[BatchedNetwork | None, BatchedNetwork]:
        """The part that training does not change, if it can be had by itself, and the rest."""

    def outputs(self, parameters: Parameters, batched: BatchedNames, inputs: Sequence[Tensor]) -> Any:
        """What the network says, without dropout."""

    def gradient(
        self,
        parameters: Parameters,
        batched: BatchedNames,
        trained: Sequence[str],
        inputs: Sequence[Tensor],
        losses: BatchedLoss,
        masks: Masks | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """Every client's gradient of its loss in the trained parameters, and the losses; masks are for training."""

    def steps(self, parameters: Parameters, batched: BatchedNames, trained: Sequence[str], step: Step) -> Steps | None:
        """Steps of SGD on the mean cross-entropy that change the trained parameters in place, where it has them.

        Args:
            parameters: All parameters, at their place in memory.
            batched: Those with a first dimension of clients.
            trained: Those that move.
            step: How.
        """


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
    before: tuple[str, ...] = ()
    """Layers with dropout in front of them, beside the dropout that is in the network."""
    rate: float = 0.0

    @property
    def draws(self) -> bool:
        """Whether it drops values in training."""
        return bool(self.rate and self.before) or bool(dropouts(self.module))

    @property
    def by_sample(self) -> bool:
        """A network may put its samples where it likes."""
        return False

    def dropping(self, before: Sequence[str], rate: float) -> BatchedNetwork:
        """The same with dropout in front of some layers."""
        return replace(self, before=tuple(before), rate=rate)

    def cut(self, trained: Collection[str]) -> tuple[BatchedNetwork | None, BatchedNetwork]:
        """It is one piece."""
        del trained
        return None, self

    def outputs(
        self, parameters: Parameters, batched: BatchedNames, inputs: Sequence[Tensor], masks: Masks | None = None
    ) -> Any:
        """The module mapped over clients."""
        drawn = () if masks is None else self._drawn(parameters, batched, inputs, masks)

        def one(own: Parameters, own_masks: Sequence[Tensor], *parts: Tensor) -> Any:
            if masks is None:
                return functional_call(self.module, dict(own), parts)
            following = iter(own_masks)
            with masked(self.module, self.before, self.rate, lambda *_: next(following)):
                return functional_call(self.module, dict(own), parts)

        dimensions = {name: 0 if name in batched else None for name in parameters}
        with written_out(self.module):
            return torch.vmap(one, in_dims=(dimensions, 0, *[0] * len(inputs)))(dict(parameters), drawn, *inputs)

    @torch.no_grad()
    def _drawn(
        self, parameters: Parameters, batched: BatchedNames, inputs: Sequence[Tensor], masks: Masks
    ) -> tuple[Tensor, ...]:
        """The masks of one forward pass. One client shows what is dropped: nothing random is allowed within vmap."""
        asked: list[tuple[torch.Size, torch.dtype, float, bool]] = []

        def note(values: Tensor, rate: float, whole_numbers: bool) -> Tensor:
            asked.append((values.shape, values.dtype, rate, whole_numbers))
            return torch.ones((), dtype=values.dtype)

        with masked(self.module, self.before, self.rate, note):
            own = {n: t[0] if n in batched else t for n, t in parameters.items()}
            functional_call(self.module, own, tuple(values[0] for values in inputs))
        clients = len(inputs[0])
        return tuple(masks((clients, *shape), dtype, rate, whole) for shape, dtype, rate, whole in asked)

    def gradient(
        self,
        parameters: Parameters,
        batched: BatchedNames,
        trained: Sequence[str],
        inputs: Sequence[Tensor],
        losses: BatchedLoss,
        masks: Masks | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """By autograd."""
        active = {n: parameters[n].detach().requires_grad_(True) for n in trained}
        client_losses = losses(self.outputs({**parameters, **active}, batched, inputs, masks))
        grads = torch.autograd.grad(client_losses.sum(), [*active.values()], materialize_grads=True, allow_unused=True)
        return list(grads), client_losses.detach()

    def steps(self, parameters: Parameters, batched: BatchedNames, trained: Sequence[str], step: Step) -> Steps | None:
        """None: its gradients are whole before anything moves."""
        del parameters, batched, trained, step
        return None


class _Tracer(fx.Tracer):
    """Takes every known dropout for one operation."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in KNOWN or super().is_leaf_module(m, module_qualified_name)


def _linear(module: nn.Module) -> LinearChain | None:
    """The chain that the network is, if it is nothing but fully connected layers and simple functions."""
    try:
        graph = _Tracer().trace(module)
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
        if isinstance(part, nn.Dropout) and type(part) in KNOWN:
            return Dropping(part.p, type(part) is Dropout and not part.inplace) if part.p else IDENTITY
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
