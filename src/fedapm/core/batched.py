"""BatchedVec and PerClient: the vectors and numbers of several clients in one object.

A method's code is the same for one client and for a batch of them: a vector's first dimension counts clients, and a
number has one value per client. What cannot be done for a batch, such as an ``if`` whose outcome differs between
clients, raises :class:`NotBatchable`, and the engine then runs the clients one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedapm.core.vec import Vec

Rows = Tensor | slice
"""Which of the clients: their positions, or a range of these."""


class NotBatchable(Exception):
    """These clients cannot be computed in one batch; the message gives the reason."""


class PerClient:
    """A number for each client."""

    __slots__ = ("values",)

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __mul__(self, other: Vec | PerClient | float) -> Any:
        if isinstance(other, Vec):
            return self.scale(other)
        return PerClient(self.values * _values(other))

    __rmul__ = __mul__

    def __add__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values + _values(other))

    __radd__ = __add__

    def __sub__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values - _values(other))

    def __rsub__(self, other: PerClient | float) -> PerClient:
        return PerClient(_values(other) - self.values)

    def __truediv__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values / _values(other))

    def __rtruediv__(self, other: PerClient | float) -> PerClient:
        return PerClient(_values(other) / self.values)

    def __neg__(self) -> PerClient:
        return PerClient(-self.values)

    def __abs__(self) -> PerClient:
        return PerClient(self.values.abs())

    # an answer for each client; an `if` needs one that is the same for all
    def __lt__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values < _values(other))

    def __le__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values <= _values(other))

    def __gt__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values > _values(other))

    def __ge__(self, other: PerClient | float) -> PerClient:
        return PerClient(self.values >= _values(other))

    def __bool__(self) -> bool:
        if bool(self.values.all()):
            return True
        if bool(self.values.any()):
            raise NotBatchable("the method does different things at different clients")
        return False

    def __float__(self) -> float:
        raise NotBatchable("the method needs one client's number alone")

    def rows(self, index: Rows) -> PerClient:
        """The numbers of some of the clients."""
        return PerClient(self.values[index])

    def scale(self, vector: Vec) -> BatchedVec:
        """A vector multiplied by each client's number."""
        return BatchedVec({n: t * self.over(t, vector.batched) for n, t in vector.items()})

    def over(self, tensor: Tensor, batched: bool = True) -> Tensor:
        """The numbers in a shape that broadcasts over a tensor."""
        return self.values.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - batched))


class BatchedVec(Vec):
    """The vectors of several clients: the first dimension of every tensor counts clients."""

    __slots__ = ()
    batched = True

    @property
    def count(self) -> int:
        """The number of clients."""
        return len(next(iter(self.values()))) if len(self) else 0

    def new(self, tensors: dict[str, Tensor]) -> Vec:
        """A vector of the same clients."""
        return BatchedVec(tensors)

    def flat(self) -> Tensor:
        """The coordinates of each client in a row."""
        return torch.cat([t.flatten(1) for t in self.values()], 1)

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
        return PerClient(sums / max(self.width, 1))

    def finite(self) -> Tensor:
        """Whether each client's coordinates are all finite."""
        # a finite sum has finite terms and is much faster to check; a sum of large finite terms may still overflow
        sums = torch.stack([t.sum() for t in self.values()])
        if math.isfinite(sums.sum().item()):
            return torch.ones(self.count, dtype=torch.bool, device=sums.device)
        return torch.stack([torch.isfinite(t).flatten(1).all(1) for t in self.values()]).all(0)

    def rows(self, index: Rows) -> BatchedVec:
        """The vectors of some of the clients."""
        return BatchedVec({n: t[index] for n, t in self.items()})

    def with_rows(self, index: Rows, part: Vec) -> BatchedVec:
        """These vectors, with those of some of the clients replaced."""
        new = {n: t.clone(memory_format=torch.contiguous_format) for n, t in self.items()}
        for name, tensor in new.items():
            tensor[index] = part[name]
        return BatchedVec(new)

    def unbind(self) -> list[Vec]:
        """The vector of each client."""
        columns = {n: t.unbind(0) for n, t in self.items()}
        return [Vec({n: column[k] for n, column in columns.items()}) for k in range(self.count)]


def batched(vectors: Sequence[Vec]) -> BatchedVec:
    """Combine the vectors of several clients."""
    return BatchedVec({n: torch.stack([v[n] for v in vectors]) for n in vectors[0]})


def wide(vector: Vec, count: int) -> BatchedVec:
    """A vector of several clients; one that is the same for all of them is repeated."""
    if isinstance(vector, BatchedVec):
        return vector
    return BatchedVec({n: t.expand(count, *t.shape) for n, t in vector.items()})


def rows_of(value: Any, index: Rows) -> Any:
    """A vector or number of some of the clients; what is the same for all of them stays as it is."""
    return value.rows(index) if isinstance(value, BatchedVec | PerClient) else value


def numbers(like: Vec, **values: float | PerClient) -> Vec:
    """Numbers as a vector, so that they can be sent and added up.

    Args:
        like: A vector of the same client or clients.
        values: The numbers by name.

    Returns:
        One element for each name, in double precision.
    """
    device = next((t.device for t in like.values()), torch.device("cpu"))
    count = like.count if isinstance(like, BatchedVec) else None

    def tensor(value: float | PerClient) -> Tensor:
        if isinstance(value, PerClient):
            return value.values.to(device, torch.float64).view(-1, 1)
        one = torch.tensor([value], dtype=torch.float64, device=device)
        return one if count is None else one.expand(count, 1)

    vector = Vec if count is None else BatchedVec
    return vector({name: tensor(value) for name, value in values.items()})


def _values(other: PerClient | float) -> Tensor | float:
    return other.values if isinstance(other, PerClient) else other
