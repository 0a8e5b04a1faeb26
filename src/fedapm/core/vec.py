"""Vec: the paper's vectors u, v and π as named tensors that add, scale and multiply."""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedapm.errors import FedapmError, closest


class Vec(Mapping[str, Tensor]):
    """An immutable vector whose coordinates are grouped in named tensors.

    Arithmetic returns new vectors and changes nothing in place, so a Vec can be stored, sent or compared without
    copying. Two vectors combine only if they have the same names.

    Args:
        tensors: The tensors by name.
    """

    __slots__ = ("_tensors",)
    # otherwise a numpy number on the left of a Vec would iterate over it
    __array_ufunc__ = None
    batched: ClassVar[bool] = False
    """Whether the vectors of several clients are side by side (see ``fedapm.core.batched``)."""

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        self._tensors: dict[str, Tensor] = dict(tensors or {})

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    # the dictionary's own views are several times faster than those of Mapping
    def items(self) -> ItemsView[str, Tensor]:
        """Names and tensors."""
        return self._tensors.items()

    def values(self) -> ValuesView[Tensor]:
        """The tensors, in order."""
        return self._tensors.values()

    def __repr__(self) -> str:
        return "Vec(" + ", ".join(f"{n}: {tuple(t.shape)}" for n, t in self._tensors.items()) + ")"

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self._tensors)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return sum(t.numel() * t.element_size() for t in self._tensors.values())

    @property
    def numel(self) -> int:
        """The number of coordinates."""
        return sum(t.numel() for t in self._tensors.values())

    @property
    def width(self) -> int:
        """The number of coordinates of one client."""
        return self.numel // max(len(next(iter(self.values()))), 1) if self.batched and len(self) else self.numel

    def __add__(self, other: Vec) -> Vec:
        return self._zip(other, torch.add)

    def __sub__(self, other: Vec) -> Vec:
        return self._zip(other, torch.sub)

    def __mul__(self, factor: Any) -> Vec:
        if hasattr(factor, "scale"):  # a number for each of several clients
            scaled: Vec = factor.scale(self)
            return scaled
        if (
            isinstance(factor, int | float)
            and factor == 1
            and all(t.is_floating_point() for t in self._tensors.values())
        ):
            return self  # nothing changes in place, so a copy would be the same
        return self.map(lambda t: t * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Vec:
        if hasattr(divisor, "scale"):
            divided: Vec = (1 / divisor).scale(self)
            return divided
        return self.map(lambda t: t / divisor)

    def __neg__(self) -> Vec:
        return self.map(torch.neg)

    def __matmul__(self, other: Vec) -> float:
        """The inner product ⟨self, other⟩, summed in double precision."""
        products = self._zip(other, lambda a, b: torch.sum(a.double() * b.double()))
        return math.fsum(t.item() for t in products.values())

    def times(self, other: Vec) -> Vec:
        """The elementwise product."""
        return self._zip(other, torch.mul)

    def weighted(self, factors: Mapping[str, Any]) -> Vec:
        """Each tensor times a number of its own."""
        return self.new({n: factors[n] * t for n, t in self._tensors.items()})

    def mean(self) -> float:
        """The mean of all coordinates."""
        return math.fsum(t.double().sum().item() for t in self._tensors.values()) / max(self.numel, 1)

    def sq(self) -> float:
        """‖self‖²."""
        return self @ self

    def norm(self) -> float:
        """‖self‖."""
        return math.sqrt(self.sq())

    def __or__(self, other: Vec) -> Vec:
        """Concatenate two vectors with different names, as in (u, v)."""
        common = self._tensors.keys() & other._tensors.keys()
        if common:
            raise FedapmError(f"two vectors both hold {sorted(common)[0]!r}, so they cannot be concatenated.")
        if self.batched != other.batched:
            single, batch = (other, self) if self.batched else (self, other)
            return batch.new(self._expand(batch) | other._expand(batch)) if len(batch) else single
        return self.new(self._tensors | other._tensors)

    def only(self, names: Iterable[str]) -> Vec:
        """The part with these names."""
        return self.new({n: self._tensors[n] for n in names})

    def without(self, names: Iterable[str]) -> Vec:
        """The part without these names."""
        removed = set(names)
        return self.new({n: t for n, t in self._tensors.items() if n not in removed})

    def map(self, function: Callable[[Tensor], Tensor]) -> Vec:
        """Apply a function to each tensor."""
        return self.new({n: function(t) for n, t in self._tensors.items()})

    def zeros(self) -> Vec:
        """A vector of the same shape, all zero."""
        return self.map(torch.zeros_like)

    def clone(self) -> Vec:
        """A copy that shares no memory."""
        return self.map(lambda t: t.detach().clone())

    def to(self, device: torch.device | str) -> Vec:
        """The same vector on a device."""
        return self.map(lambda t: t.to(device))

    def is_finite(self) -> bool:
        """Whether no coordinate is NaN or infinite."""
        return all(bool(torch.isfinite(t).all()) for t in self._tensors.values() if t.is_floating_point())

    def equal(self, other: Vec) -> bool:
        """Whether names, shapes and every bit of value agree."""
        return self._tensors.keys() == other._tensors.keys() and all(
            torch.equal(t, other[n]) for n, t in self._tensors.items()
        )

    def _zip(self, other: Vec, function: Callable[[Tensor, Tensor], Tensor]) -> Vec:
        if self._tensors.keys() != other._tensors.keys():
            name = sorted(self._tensors.keys() ^ other._tensors.keys())[0]
            near = closest(name, (self._tensors.keys() | other._tensors.keys()) - {name}, 1)
            hint = f" (closest: {near[0]!r})" if near else ""
            raise FedapmError(f"two vectors do not match: only one of them holds {name!r}{hint}.")
        new = (self if self.batched else other).new
        return new({n: function(t, other._tensors[n]) for n, t in self._tensors.items()})

    def new(self, tensors: dict[str, Tensor]) -> Vec:
        """A vector of the same client, or clients, with other coordinates."""
        return Vec(tensors)

    def flat(self) -> Tensor:
        """The coordinates in a row."""
        return torch.cat([t.flatten() for t in self.values()])

    def shaped(self, flat: Tensor) -> Vec:
        """A vector of this one's names and shapes with other coordinates, which are given in a row."""
        count = len(next(iter(self.values()))) if self.batched else 1
        parts = torch.split(flat, [t.numel() // count for t in self.values()], -1)
        return self.new({n: part.reshape(t.shape) for (n, t), part in zip(self.items(), parts, strict=True)})

    def _expand(self, batch: Vec) -> dict[str, Tensor]:
        """These tensors, repeated for each client of a batched vector."""
        if self.batched:
            return self._tensors
        count = len(next(iter(batch.values())))
        return {n: t.expand(count, *t.shape) for n, t in self._tensors.items()}


def total(vectors: Iterable[Vec]) -> Vec:
    """The sum of vectors; the empty vector if there are none."""
    result: Vec | None = None
    for vector in vectors:
        result = vector if result is None else result + vector
    return result if result is not None else Vec()


def mean(vectors: Iterable[Vec]) -> Vec:
    """The average of at least one vector."""
    items = list(vectors)
    return total(items) / len(items)
