"""Stack and Each: the vectors and numbers of several clients side by side.

A method's code reads the same for one client and for many: where it is given stacks, a vector's first dimension counts
clients, and a number is one for each client. What has no meaning for many clients at once, such as an ``if`` on a
number, is refused, and the engine then runs the clients one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedapm.core.vec import Vec


class NotBatchable(Exception):
    """These clients cannot be computed together; the message says why."""


class PerClient:
    """A number for each client."""

    __slots__ = ("values",)

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __mul__(self, other: Vec | PerClient | float) -> Any:
        if isinstance(other, Vec):
            return self.scale(other)
        return PerClient(self.values * _plain(other))

    __rmul__ = __mul__

    def __add__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values + _plain(other))

    __radd__ = __add__

    def __sub__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values - _plain(other))

    def __rsub__(self, other: PerClient | float) -> PerClient:
        return PerClient(_plain(other) - self.values)

    def __truediv__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values / _plain(other))

    def __rtruediv__(self, other: PerClient | float) -> PerClient:
        return PerClient(_plain(other) / self.values)

    def __neg__(self) -> PerClient:
        return PerClient(-self.values)

    def __bool__(self) -> bool:
        return self._agreed(self.values != 0)

    def __lt__(self, other: PerClient | float) -> bool:
        return self._agreed(self.values < _plain(other))

    def __le__(self, other: PerClient | float) -> bool:
        return self._agreed(self.values <= _plain(other))

    def __gt__(self, other: PerClient | float) -> bool:
        return self._agreed(self.values > _plain(other))

    def __ge__(self, other: PerClient | float) -> bool:
        return self._agreed(self.values >= _plain(other))

    def __float__(self) -> float:
        raise NotBatchable("the method takes one client's number for itself")

    def _agreed(self, answers: Tensor) -> bool:
        if bool(answers.all()):
            return True
        if bool(answers.any()):
            raise NotBatchable("the method does different things at different clients")
        return False

    def scale(self, vector: Vec) -> BatchedVec:
        """A vector multiplied by each client's number."""
        return BatchedVec({n: t * self.over(t, vector.batched) for n, t in vector.items()})

    def over(self, tensor: Tensor, batched: bool = True) -> Tensor:
        """The numbers shaped so that each multiplies its client's part of a tensor."""
        return self.values.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - batched))


class BatchedVec(Vec):
    """The vectors of several clients: the first dimension of every tensor counts clients."""

    __slots__ = ()
    batched = True

    @property
    def count(self) -> int:
        """How many clients."""
        return len(next(iter(self.values()))) if len(self) else 0

    def _made(self, tensors: dict[str, Tensor]) -> Vec:
        return BatchedVec(tensors)

    def __matmul__(self, other: Vec) -> PerClient:  # type: ignore[override]
        products = self._zip(other, lambda a, b: (a.double() * b.double()).flatten(1).sum(1))
        return PerClient(torch.stack([*products.values()]).sum(0))

    def sq(self) -> PerClient:  # type: ignore[override]
        """‖·‖² of each client's vector."""
        return self @ self

    def norm(self) -> PerClient:  # type: ignore[override]
        """‖·‖ of each client's vector."""
        return PerClient(self.sq().values.sqrt())

    def mean(self) -> PerClient:  # type: ignore[override]
        """The mean of each client's coordinates."""
        sums = torch.stack([t.double().flatten(1).sum(1) for t in self.values()]).sum(0)
        return PerClient(sums / max(self.numel // max(self.count, 1), 1))

    def finite(self) -> Tensor:
        """For each client whether no coordinate is NaN or infinite."""
        # a sum is finite only if its terms are, and far cheaper to look at; a sum of large terms may still overflow
        sums = torch.stack([t.flatten(1).sum(1) for t in self.values()])
        if bool(torch.isfinite(sums).all()):
            return torch.ones(self.count, dtype=torch.bool, device=sums.device)
        return torch.stack([torch.isfinite(t).flatten(1).all(1) for t in self.values()]).all(0)

    def rows(self, index: Tensor) -> BatchedVec:
        """The vectors of some of the clients."""
        return BatchedVec({n: t[index] for n, t in self.items()})

    def unbind(self) -> list[Vec]:
        """Every client's vector by itself."""
        columns = {n: t.unbind(0) for n, t in self.items()}
        return [Vec({n: column[k] for n, column in columns.items()}) for k in range(self.count)]


def batched(vectors: Sequence[Vec]) -> BatchedVec:
    """Several clients' vectors side by side."""
    return BatchedVec({n: torch.stack([v[n] for v in vectors]) for n in vectors[0]})


def _plain(other: PerClient | float) -> Tensor | float:
    return other.values if isinstance(other, PerClient) else other
