"""What a client minimizes: α·f and the terms beside it, given as vectors, with their gradients.

f is the mean loss plus λ/2·‖p‖², and for personal parameters λ₀/2·‖v − v⁰‖² where there is a prior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedapm.core.batched import Rows, rows_of
from fedapm.core.vec import Vec

WeightDecay = float | Mapping[str, float]
"""λ, one for all parameters or one for each."""
ProxWeight = float | Mapping[str, float]
"""The weight of a proximal term, one for all parameters or one for each."""


def l2_penalty(decay: WeightDecay, p: Vec) -> float:
    """λ/2·‖p‖²."""
    if isinstance(decay, Mapping):
        return sum(l2_penalty(decay[n], Vec({n: t})) for n, t in p.items())
    return 0.5 * decay * p.sq()


def l2_gradient(decay: WeightDecay, p: Vec) -> Vec:
    """λ·p, the gradient of the penalty."""
    return p.weighted(decay) if isinstance(decay, Mapping) else decay * p


@dataclass(frozen=True)
class Prox:
    """The proximal term weight/2·‖p − centre‖²; several parameters may have weights of their own."""

    weight: ProxWeight
    center: Vec

    def curvature(self, name: str) -> float:
        """Its second derivative in each coordinate of a parameter."""
        return self.weight[name] if isinstance(self.weight, Mapping) else self.weight

    def pull(self, p: Vec) -> Vec:
        """weight·p: at p − centre the gradient of the term."""
        return p.weighted(self.weight) if isinstance(self.weight, Mapping) else self.weight * p


@dataclass(frozen=True)
class Prior:
    """The term λ₀/2·‖v − v⁰‖² of f, on some of the parameters."""

    weight: float
    center: Vec

    def penalty(self, p: Vec) -> float:
        """Its value at p."""
        return 0.5 * self.weight * (p.only(self.center) - self.center).sq()

    def curvature(self, name: str) -> float:
        """Its second derivative in each coordinate of a parameter."""
        return self.weight if name in self.center else 0.0

    def added(self, gradient: Vec, p: Vec) -> Vec:
        """A gradient plus that of this term at p."""
        pull = gradient.only(self.center) + self.weight * (p.only(self.center) - self.center)
        return (gradient.without(self.center) | pull).only(gradient)


@dataclass(frozen=True)
class Objective:
    """What is minimised: weight·(f + λ/2·‖p‖² + prior) + ⟨linear, p⟩ + prox."""

    weight: float
    weight_decay: WeightDecay = 0.0
    linear: Vec | None = None
    prox: Prox | None = None
    prior: Prior | None = None

    def slope(self, names: Sequence[str]) -> float | list[float]:
        """The factor of p in the gradient of all terms but f; one for each parameter where they differ."""
        own = self.prox is not None and isinstance(self.prox.weight, Mapping)
        if own or isinstance(self.weight_decay, Mapping) or self.prior is not None:
            each = [self.weight * (self._decay(n) + self._prior(n)) + self._pull(n) for n in names]
            same = len({(self._decay(n), self._prior(n), self._pull(n)) for n in names}) == 1
            return each[0] if same else each
        return self.weight * self.weight_decay + (self._pull(names[0]) if names else 0.0)

    def offset(self, names: tuple[str, ...]) -> list[Tensor] | None:
        """The constant part of that gradient, or None where it is zero."""
        constant = self.linear
        if self.prox is not None and self.prox.weight:
            pull = self.prox.pull(self.prox.center)
            constant = constant - pull if constant is not None else -pull
        if self.prior is None:
            return None if constant is None else [constant[n] for n in names]
        towards = self.weight * self.prior.weight * self.prior.center
        zero = torch.zeros((), device=next(iter(towards.values())).device)
        return [(zero if constant is None else constant[n]) - towards.get(n, zero) for n in names]

    def gradient(self, p: Vec, of_f: Vec) -> Vec:
        """The gradient of the whole objective at p, given that of f."""
        of_f = of_f + l2_gradient(self.weight_decay, p)
        result = self.weight * (of_f if self.prior is None else self.prior.added(of_f, p))
        if self.linear is not None:
            result = result + self.linear
        if self.prox is not None:
            result = result + self.prox.pull(p - self.prox.center)
        return result

    def rows(self, index: Rows) -> Objective:
        """That of some of several clients."""
        prox = self.prox and replace(self.prox, center=rows_of(self.prox.center, index))
        prior = self.prior and replace(self.prior, center=rows_of(self.prior.center, index))
        linear = rows_of(self.linear, index)
        return replace(self, weight=rows_of(self.weight, index), linear=linear, prox=prox, prior=prior)

    def _decay(self, name: str) -> float:
        return self.weight_decay[name] if isinstance(self.weight_decay, Mapping) else self.weight_decay

    def _pull(self, name: str) -> float:
        return self.prox.curvature(name) if self.prox is not None else 0.0

    def _prior(self, name: str) -> float:
        return self.prior.curvature(name) if self.prior is not None else 0.0
