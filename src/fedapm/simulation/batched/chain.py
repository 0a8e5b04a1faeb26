"""A chain of layers computed for several clients at once, and its steps of SGD with nothing between the products."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fedapm.core.batched import PerClient
from fedapm.simulation.batched.dropout import Masks
from fedapm.simulation.batched.layers import BatchedNames, Dropping, Elementwise, Grads, Layer, Linear, Parameters
from fedapm.simulation.batched.losses import BatchedLoss, log_softmax
from fedapm.simulation.batched.products import small_products


@dataclass(frozen=True)
class LinearChain:
    """Layers one after the other, with their backward pass written out."""

    layers: tuple[Layer, ...]

    @cached_property
    def draws(self) -> bool:
        """Whether it drops values in training."""
        return any(isinstance(layer, Dropping) for layer in self.layers)

    @property
    def by_sample(self) -> bool:
        """All values are (clients, samples, …)."""
        return True

    def dropping(self, before: Sequence[str], rate: float) -> LinearChain:
        """The same with dropout in front of some layers."""
        layers: list[Layer] = []
        for layer in self.layers:
            if isinstance(layer, Linear) and layer.name in before:
                layers.append(Dropping(rate, whole_numbers=True))
            layers.append(layer)
        return LinearChain(tuple(layers))

    def cut(self, trained: Collection[str]) -> tuple[LinearChain | None, LinearChain]:
        """Before and from the first layer that is trained or that drops values."""

        def changes(layer: Layer) -> bool:
            return isinstance(layer, Dropping) or any(name in trained for name in layer.names)

        place = next((k for k, layer in enumerate(self.layers) if changes(layer)), 0)
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
        masks: Masks | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """By the chain rule, back to the first layer that is trained."""
        values, layers = [*inputs], list(self.layers)
        for k, layer in enumerate(layers):
            if masks is not None and isinstance(layer, Dropping):
                layers[k] = layer = layer.drawn(values[-1], masks)
            values.append(layer.forward(parameters, batched, values[-1]))
        client_losses, dy = losses.slope(values[-1])
        grads = Grads()
        first = next((k for k, layer in enumerate(layers) if any(n in trained for n in layer.names)), len(layers))
        for k in range(len(layers) - 1, first - 1, -1):
            layer, x = layers[k], values[k]
            if any(n in trained for n in layer.names):
                for name, grad in layer.grads(x, dy).items():
                    grads[name] = grads[name] + grad if name in grads else grad
            if k > first:
                dy = layer.back(parameters, batched, x, values[k + 1], dy)
        return [grads[n] if n in grads else torch.zeros_like(parameters[n]) for n in trained], client_losses

    def steps(self, parameters: Parameters, batched: BatchedNames, trained: Sequence[str], step: Step) -> Steps | None:
        """Its steps in place; None where a gradient has to be whole before anything moves."""
        names = [name for layer in self.layers for name in layer.names]
        # a layer that comes twice is needed as it was when its second place has moved
        if self.draws or len({*names}) < len(names) or isinstance(step.weight, PerClient):
            return None
        slopes = step.slope if isinstance(step.slope, list) else [step.slope] * len(trained)
        if any(isinstance(slope, PerClient) for slope in slopes):
            return None
        shrinks = {name: 1 - step.lr * slope for name, slope in zip(trained, slopes, strict=True)}
        return Steps(self.layers, parameters, batched, shrinks, step)


@dataclass(frozen=True)
class Step:
    """p ← p − lr·(weight·∇f + slope·p + offset), as :func:`fedapm.core.solver.sgd_step` has it."""

    lr: float
    weight: Any
    slope: Any
    offset: list[Tensor] | None
    samples: int
    """How many of each client it is taken on."""


class Steps:
    """Steps of SGD on the mean cross-entropy, of clients whose parameters stay at their place in memory.

    Small steps take as long as their operations are many. So views are made once, and the product that is a layer's
    gradient adds it to the parameters.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        parameters: Parameters,
        batched: BatchedNames,
        shrinks: Mapping[str, float],
        step: Step,
    ) -> None:
        """Prepare.

        Args:
            layers: The chain.
            parameters: All its parameters; those that are trained are changed in place.
            batched: Those with a first dimension of clients.
            shrinks: 1 − lr·slope of those that are trained.
            step: The rule.
        """
        self._parameters, self._batched, self._step = parameters, batched, step
        self._factor = -step.lr * step.weight
        self._trained = [parameters[name] for name in shrinks]
        # the gradient of a product does not need the product, nor that of a function its argument
        fresh = [False, *[isinstance(layer, Linear) for layer in layers]]
        self._forward = [self._forwards(layer, new) for layer, new in zip(layers, fresh, strict=False)]
        first = next((k for k, layer in enumerate(layers) if any(n in shrinks for n in layer.names)), len(layers))
        # what goes back through a layer is computed before the layer moves
        self._backward = [
            (k, self._backs(layer) if k > first else None, self._moves(layer, shrinks))
            for k, layer in reversed([*enumerate(layers)][first:])
        ]
        used = {name for layer in layers for name in layer.names}
        self._unused = [(parameters[name], shrink) for name, shrink in shrinks.items() if name not in used]
        self._minus_one = torch.full((), -1.0, dtype=self._trained[0].dtype, device=self._trained[0].device)

    def _forwards(self, layer: Layer, fresh: bool) -> Callable[[Tensor], Tensor]:
        """A layer's output, of an input that may be overwritten if it is fresh."""
        parameters, batched = self._parameters, self._batched
        if isinstance(layer, Elementwise):
            return layer.in_place if fresh and layer.in_place is not None else layer.function
        if isinstance(layer, Linear) and len(layer.names) == 2 and batched.issuperset(layer.names):
            weight, bias = (parameters[name] for name in layer.names)
            columns, row = weight.transpose(1, 2), bias.unsqueeze(1)
            product = small_products(columns, self._step.samples)
            if product is None:
                return lambda x: torch.baddbmm(row, x, columns)
            return lambda x: product(x).add_(row)
        return partial(layer.forward, parameters, batched)

    def _backs(self, layer: Layer) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """The gradient in a layer's input, of x, y and dy."""
        plain = partial(layer.back, self._parameters, self._batched)
        if not (isinstance(layer, Linear) and layer.names[0] in self._batched):
            return plain
        product = small_products(self._parameters[layer.names[0]], self._step.samples)

        def small(x: Tensor, y: Tensor, dy: Tensor) -> Tensor:
            del x, y
            assert product is not None
            return product(dy)

        return plain if product is None else small

    def _moves(self, layer: Layer, shrinks: Mapping[str, float]) -> list[Callable[[Tensor, Tensor, float], object]]:
        """What moves a layer's parameters, of x, dy and the factor of the gradient; only linear layers have any."""

        def weight(p: Tensor, shrink: float) -> Callable[[Tensor, Tensor, float], object]:
            return lambda x, dy, factor: p.baddbmm_(dy.transpose(1, 2), x, beta=shrink, alpha=factor)

        def bias(p: Tensor, shrink: float) -> Callable[[Tensor, Tensor, float], object]:
            def move(x: Tensor, dy: Tensor, factor: float) -> None:
                del x
                if shrink != 1:
                    p.mul_(shrink)
                p.add_(dy.sum(1), alpha=factor)

            return move

        kinds = zip(layer.names, (weight, bias), strict=False)
        return [kind(self._parameters[name], shrinks[name]) for name, kind in kinds if name in shrinks]

    def __call__(self, x: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """One step; nobody may record it for gradients.

        Args:
            x: The inputs (clients, samples, …).
            targets: The classes (clients, samples).
            weights: What each sample counts, where they do not count alike; a client's add up to one.

        Returns:
            The logarithm of the probability of the right class before the step, of each sample.
        """
        values = [x]
        for forward in self._forward:
            values.append(forward(values[-1]))
        right = targets.unsqueeze(2)
        dy = log_softmax(values[-1])
        found = dy.gather(2, right).squeeze(2)
        dy.exp_().scatter_add_(2, right, self._minus_one.expand(right.shape))
        if weights is not None:
            dy *= weights.to(dy.dtype).unsqueeze(2)
        factor = self._factor if weights is not None else self._factor / targets.shape[1]
        for k, back, moves in self._backward:
            after = dy
            if back is not None:
                dy = back(values[k], values[k + 1], after)
            for move in moves:
                move(values[k], after, factor)
        for parameter, shrink in self._unused:
            parameter.mul_(shrink)
        if self._step.offset is not None:
            torch._foreach_add_(self._trained, self._step.offset, alpha=-self._step.lr)
        return found
