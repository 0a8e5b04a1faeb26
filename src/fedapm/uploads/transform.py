"""Transform: what is done to a vector before it is sent, always in this order: clipped, compressed, rounded.

A mask that hides a message in a sum comes last, because it needs whole numbers in a known range (``masks``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedapm.core.batched import BatchedVec, PerClient, batched
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.uploads.compression import Compression, Whole
from fedapm.uploads.masks.fixed_point import FixedPoint
from fedapm.uploads.rounding import Exact, Rounding


@dataclass(frozen=True)
class Transform:
    """What is done to a vector before it is sent."""

    clip: float | None = None
    """The norm it may have at most."""
    compression: Compression = field(default_factory=Whole)
    rounding: Rounding = field(default_factory=Exact)

    @property
    def codes(self) -> bool:
        """Whether something else is sent than the vector's own numbers."""
        return not (isinstance(self.compression, Whole) and isinstance(self.rounding, Exact))

    def send(self, wanted: Vec, unit: Any, streams: Sequence[torch.Generator]) -> tuple[Vec, Vec]:
        """What arrives of a vector, and what goes over the wire for it.

        Args:
            wanted: The vector of one client, or of several side by side. What is not finite arrives as it is, so that
                it is seen and left out.
            unit: What it is a multiple of, as in an :class:`fedapm.core.algorithm.Upload`.
            streams: A random stream for each client.

        Returns:
            The vector as a receiver makes it again, and the tensors that are sent.
        """
        if not isinstance(wanted, BatchedVec):
            return self._send(wanted, unit, streams[0])
        units = unit.values.tolist() if isinstance(unit, PerClient) else [unit] * wanted.count
        sent = [self._send(*each) for each in zip(wanted.unbind(), units, streams, strict=True)]
        return batched([vector for vector, _ in sent]), batched([wire for _, wire in sent])

    def _send(self, wanted: Vec, unit: float, stream: torch.Generator) -> tuple[Vec, Vec]:
        if not wanted.is_finite():
            return wanted, self.encode(wanted.zeros(), stream)
        bounded = self.bounded(wanted, unit)
        wire = self.encode(bounded, stream)
        return (self.decode(wire, wanted) if self.codes else bounded), wire

    def bounded(self, vector: Vec, unit: float) -> Vec:
        """The vector, shortened so that it arrives with the largest norm it may have, or less."""
        if self.clip is None:
            return vector
        norm, most = vector.norm() / abs(unit), self.clip
        if isinstance(self.rounding, FixedPoint):
            most -= self.rounding.lengthening(vector.numel) / abs(unit)
            if most <= 0:
                raise FedapmError(
                    f"rounding to multiples of upload.mask_step = {self.rounding.step:g} alone may be longer than a "
                    f"change of norm {self.clip:g}, which is the most that is allowed; take a smaller step."
                )
        return vector if norm <= most else vector * (most / norm)

    def encode(self, vector: Vec, stream: torch.Generator) -> Vec:
        """The tensors that are sent for a vector.

        Args:
            vector: What is to arrive, as far as the transform lets it.
            stream: Where random numbers are drawn from.

        Raises:
            FedapmError: If it is not finite.
        """
        if not vector.is_finite():
            raise FedapmError("a vector that is not finite cannot be sent.")
        sent: dict[str, torch.Tensor] = {}
        for name, tensor in self.compression.split(vector, stream).items():
            sent |= self.rounding.encode(name, tensor, stream) if tensor.is_floating_point() else {name: tensor}
        return Vec(sent)

    def decode(self, wire: Mapping[str, torch.Tensor], like: Vec) -> Vec:
        """The vector that was sent.

        Args:
            wire: What :meth:`encode` made, or what arrived in its place.
            like: A vector of the same names, shapes and types.

        Raises:
            FedapmError: If what arrived stands for no vector.
        """
        dtype = next((t.dtype for t in like.values()), torch.float32)
        return self.compression.join(self.rounding.decode(wire, dtype), like)
