"""Compression: a vector in fewer numbers. What is left out is not lost, because the client sends it later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedapm.core.vec import Vec
from fedapm.errors import FedapmError

VALUES, MASK, INDEX = "values", "mask", "index"
LEFT, RIGHT = "|left", "|right"
"""What the names of a matrix's two factors end with."""
ITERATIONS = 2
"""Multiplications by the matrix and its transpose from which the factors of a low rank come."""


class Compression(Protocol):
    """A way to write a vector in fewer numbers."""

    def split(self, vector: Vec, stream: torch.Generator) -> dict[str, Tensor]:
        """The tensors that stand for a vector; their shapes depend on its shape alone.

        Args:
            vector: A vector of finite floats.
            stream: Where random numbers are drawn from.
        """

    def join(self, tensors: Mapping[str, Tensor], like: Vec) -> Vec:
        """The vector that tensors stand for.

        Args:
            tensors: What :meth:`split` made.
            like: A vector of the same names, shapes and types.

        Raises:
            FedapmError: If they stand for no vector.
        """


class Whole:
    """Every number."""

    def split(self, vector: Vec, stream: torch.Generator) -> dict[str, Tensor]:
        """The vector's own tensors."""
        del stream
        return dict(vector.items())

    def join(self, tensors: Mapping[str, Tensor], like: Vec) -> Vec:
        """The tensors as they are."""
        return Vec({name: tensors[name] for name in like})


@dataclass(frozen=True)
class TopK:
    """The numbers farthest from zero, and where they stand: a bit for every coordinate, or a number for each of them,
    whatever is shorter.
    """

    keep: float
    """Which share of the numbers."""

    def count(self, numel: int) -> int:
        """How many of so many numbers are sent."""
        return min(numel, max(1, math.ceil(self.keep * numel)))

    def split(self, vector: Vec, stream: torch.Generator) -> dict[str, Tensor]:
        """The largest numbers in the order of coordinates, and their places."""
        del stream
        flat = torch.cat([t.flatten() for t in vector.values()]) if len(vector) else torch.zeros(0)
        places = flat.abs().topk(self.count(flat.numel())).indices.sort().values
        values = {VALUES: flat[places]}
        if not self._masked(flat.numel()):
            return values | {INDEX: places.to(torch.int32)}
        marks = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
        marks[places] = True
        return values | {MASK: torch.from_numpy(np.packbits(marks.cpu().numpy())).to(flat.device)}

    def join(self, tensors: Mapping[str, Tensor], like: Vec) -> Vec:
        """Zeros but for the numbers that were sent."""
        values = tensors[VALUES]
        flat = torch.zeros(like.numel, dtype=values.dtype, device=values.device)
        flat[self._places(tensors, like.numel).to(values.device)] = values
        parts = torch.split(flat, [t.numel() for t in like.values()])
        return Vec({n: p.reshape(t.shape).to(t.dtype) for (n, t), p in zip(like.items(), parts, strict=True)})

    def _places(self, tensors: Mapping[str, Tensor], numel: int) -> Tensor:
        count = self.count(numel)
        if MASK in tensors:
            bits = np.unpackbits(tensors[MASK].cpu().numpy())
            if bits[numel:].any() or int(bits.sum()) != count:
                raise FedapmError(f"an upload marks {int(bits.sum())} coordinates, not {count} of {numel}.")
            return torch.from_numpy(np.flatnonzero(bits[:numel]))
        places = tensors[INDEX].long()
        ordered = bool((places[1:] > places[:-1]).all())
        if not ordered or (count and not 0 <= int(places[0]) <= int(places[-1]) < numel):
            raise FedapmError(f"an upload does not name {count} of {numel} coordinates in order.")
        return places

    def _masked(self, numel: int) -> bool:
        return math.ceil(numel / 8) <= 4 * self.count(numel)


@dataclass(frozen=True)
class LowRank:
    """Each matrix as the product of two thin ones, found by multiplying with it a few times from a random start.

    Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization. NeurIPS
    2019. A tensor of more dimensions counts as a matrix with a row for each output; one that would not become smaller
    is sent as it is.
    """

    rank: int

    def split(self, vector: Vec, stream: torch.Generator) -> dict[str, Tensor]:
        """Orthonormal columns, and the matrix multiplied by them."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in vector.items():
            if not self._thinner(tensor):
                tensors[name] = tensor
                continue
            # of ordinary size, because it is multiplied by itself
            size = tensor.abs().max()
            matrix = (tensor / size if size else tensor).reshape(tensor.shape[0], -1)
            right = torch.randn(matrix.shape[1], self.rank, generator=stream, dtype=torch.float64).to(matrix)
            for _ in range(ITERATIONS):
                left = torch.linalg.qr(matrix @ right).Q
                right = matrix.T @ left
            tensors |= {name + LEFT: left.contiguous(), name + RIGHT: right * size}
        return tensors

    def join(self, tensors: Mapping[str, Tensor], like: Vec) -> Vec:
        """The products."""
        return Vec(
            {
                name: (tensors[name + LEFT] @ tensors[name + RIGHT].T).reshape(tensor.shape)
                if self._thinner(tensor)
                else tensors[name]
                for name, tensor in like.items()
            }
        )

    def _thinner(self, tensor: Tensor) -> bool:
        if tensor.dim() < 2 or not tensor.numel():
            return False
        rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
        return self.rank * (rows + columns) < rows * columns
