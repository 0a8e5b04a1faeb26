"""Layers computed for several clients at once, forwards and backwards, without a graph for autograd.

A step on a small network costs more in bookkeeping than in arithmetic, and autograd is most of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fedapm.simulation.batched.dropout import Masks

Parameters = Mapping[str, Tensor]
BatchedNames = frozenset[str]
"""The names of parameters that have a first dimension of clients."""
Grads = dict[str, Tensor]


class Layer(Protocol):
    """One layer, of values (clients, samples, …)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its parameters."""

    def forward(self, parameters: Parameters, batched: BatchedNames, x: Tensor) -> Tensor:
        """Its output y."""

    def grads(self, x: Tensor, dy: Tensor) -> Grads:
        """The gradients in its parameters, given that in y."""

    def back(self, parameters: Parameters, batched: BatchedNames, x: Tensor, y: Tensor, dy: Tensor) -> Tensor:
        """The gradient in x, given that in y."""


@dataclass(frozen=True)
class Linear:
    """y = x·Wᵀ + b."""

    name: str
    bias: bool

    @property
    def names(self) -> tuple[str, ...]:
        """W and b."""
        return (f"{self.name}.weight", f"{self.name}.bias") if self.bias else (f"{self.name}.weight",)

    def forward(self, parameters: Parameters, batched: BatchedNames, x: Tensor) -> Tensor:
        """A batched product, or one large product where W is the same for all."""
        w_name, b_name = f"{self.name}.weight", f"{self.name}.bias"
        w, b = parameters[w_name], parameters[b_name] if self.bias else None
        if w_name not in batched:
            y = functional.linear(x, w)
        elif b is not None and b_name in batched:
            return torch.baddbmm(b.unsqueeze(1), x, w.transpose(1, 2))
        else:
            y = torch.bmm(x, w.transpose(1, 2))
        if b is None:
            return y
        return y + (b.unsqueeze(1) if b_name in batched else b)

    def grads(self, x: Tensor, dy: Tensor) -> Grads:
        """Those in W, dyᵀ·x, and in b, Σ dy."""
        grads = {f"{self.name}.weight": torch.bmm(dy.transpose(1, 2), x)}
        return grads | {f"{self.name}.bias": dy.sum(1)} if self.bias else grads

    def back(self, parameters: Parameters, batched: BatchedNames, x: Tensor, y: Tensor, dy: Tensor) -> Tensor:
        """The product dy·W."""
        del x, y
        w_name = f"{self.name}.weight"
        w = parameters[w_name]
        return torch.bmm(dy, w) if w_name in batched else dy @ w


@dataclass(frozen=True)
class Elementwise:
    """y = f(x), coordinate by coordinate."""

    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    """dx, of dy and y."""
    names: tuple[str, ...] = ()
    in_place: Callable[[Tensor], Tensor] | None = None
    """f of values that nobody needs any more, where it has such a form."""

    def forward(self, parameters: Parameters, batched: BatchedNames, x: Tensor) -> Tensor:
        """f(x)."""
        del parameters, batched
        return self.function(x)

    def grads(self, x: Tensor, dy: Tensor) -> Grads:
        """It has no parameters."""
        del x, dy
        return {}

    def back(self, parameters: Parameters, batched: BatchedNames, x: Tensor, y: Tensor, dy: Tensor) -> Tensor:
        """f′(x)·dy."""
        del parameters, batched, x
        return self.slope(dy, y)


@dataclass(frozen=True)
class Dropping:
    """y = x ⊙ mask while a network is trained, with masks that are drawn for each step; y = x otherwise."""

    rate: float
    whole_numbers: bool
    """Whether four elements of the mask are made of each random number."""
    names: tuple[str, ...] = ()

    def forward(self, parameters: Parameters, batched: BatchedNames, x: Tensor) -> Tensor:
        """x, where no mask is drawn."""
        del parameters, batched
        return x

    def grads(self, x: Tensor, dy: Tensor) -> Grads:
        """It has no parameters."""
        del x, dy
        return {}

    def back(self, parameters: Parameters, batched: BatchedNames, x: Tensor, y: Tensor, dy: Tensor) -> Tensor:
        """The same."""
        del parameters, batched, x, y
        return dy

    def drawn(self, x: Tensor, masks: Masks) -> Elementwise:
        """The layer with a mask for these values."""
        mask = masks(x.shape, x.dtype, self.rate, self.whole_numbers)
        return Elementwise(lambda values: values * mask, lambda dy, _: dy * mask)


RELU = Elementwise(torch.relu, lambda dy, y: torch.ops.aten.threshold_backward.default(dy, y, 0), in_place=torch.relu_)
TANH = Elementwise(torch.tanh, lambda dy, y: torch.ops.aten.tanh_backward.default(dy, y), in_place=torch.tanh_)
SIGMOID = Elementwise(
    torch.sigmoid, lambda dy, y: torch.ops.aten.sigmoid_backward.default(dy, y), in_place=torch.sigmoid_
)
IDENTITY = Elementwise(lambda x: x, lambda dy, _: dy)


@dataclass(frozen=True)
class Flatten:
    """All dimensions of a sample in a row."""

    names: tuple[str, ...] = ()

    def forward(self, parameters: Parameters, batched: BatchedNames, x: Tensor) -> Tensor:
        """(clients, samples, coordinates)."""
        del parameters, batched
        return x.flatten(2)

    def grads(self, x: Tensor, dy: Tensor) -> Grads:
        """It has no parameters."""
        del x, dy
        return {}

    def back(self, parameters: Parameters, batched: BatchedNames, x: Tensor, y: Tensor, dy: Tensor) -> Tensor:
        """The same numbers in their old shape."""
        del parameters, batched, y
        return dy.reshape(x.shape)
