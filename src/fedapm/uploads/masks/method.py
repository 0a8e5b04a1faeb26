"""Masked: a method whose messages are whole numbers and are added up under masks.

In a simulation the masks are made and cancel as on Flower, so that results are the same to the bit. They hide nothing
there: one process has everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from fedapm.core.algorithm import NUMBERS, Aggregate, ClientUpdate, State, Upload
from fedapm.core.batched import NotBatchable
from fedapm.core.extras import require
from fedapm.core.task import Task
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.uploads.layer import Layer
from fedapm.uploads.masks.fixed_point import FixedPoint

if TYPE_CHECKING:
    from fedapm.uploads.masks.keys import MaskKey

PURPOSE = "upload"
SIMULATED = "simulation"


@dataclass(frozen=True)
class Masked(Layer):
    """A method whose messages are added up under masks."""

    point: FixedPoint
    threshold: int
    """t: no sum over fewer clients is computed."""

    @property
    def screens(self) -> bool:
        """No single message can be looked at; what clients do to their own messages, they do."""
        return False

    def check(self, clients: int) -> None:
        """Refuse rounds of so many clients, where that is too few to hide anybody or too many to be added up."""
        if clients < self.threshold:
            raise FedapmError(
                f"{clients} clients are selected in a round, but upload.mask_threshold = {self.threshold}; select more "
                "of them (engine.fraction), or lower it."
            )
        if clients > self.point.room:
            raise FedapmError(
                f"{clients} clients are selected in a round, but messages of {self.point.bits} bits leave room for "
                f"{self.point.room}; take upload.mask_bits = 64, a smaller upload.mask_range or a larger "
                "upload.mask_step."
            )

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The method's own, one client at a time."""
        if len(task.streams(PURPOSE)) > 1:
            raise NotBatchable("each message gets a mask of its own")
        return self.method.client_update(broadcast, state, task)

    def aggregate(self, uploads: Iterable[Upload]) -> Aggregate:
        """The sum, taken of masked messages."""
        require("cryptography", "flower", "upload.mask")
        from fedapm.uploads.masks.streams import Group, added

        items = list(uploads)
        total = Aggregate.of(items)
        if not items:
            return total
        self._check_room(len(items))
        keys = _keys(len(items))
        group = Group(SIMULATED, 0, "", {client: key.public for client, key in keys.items()})
        hidden = [
            group.masked(item.wire, client, keys[client])
            for client, item in zip(keys, items, strict=True)
            if item.wire is not None
        ]
        return replace(total, sums={**total.sums, **self.opened(added(hidden), len(items), total.sums)})

    def opened(self, total: Vec, count: int, like: Mapping[str, Vec]) -> dict[str, Vec]:
        """The sums that masked messages add up to, but for single numbers.

        Args:
            total: The messages of a whole group, added up.
            count: How many there are.
            like: Sums of the same names, shapes and types.

        Raises:
            FedapmError: If no messages add up to it, because some of them were not masked as they should be.
        """
        most = count * self.point.largest
        if any(bool((tensor.abs() > most).any()) or bool((tensor < -most).any()) for tensor in total.values()):
            raise FedapmError(f"the sum of {count} masked messages is beyond what they can add up to")
        sums = {}
        for name, vector in like.items():
            if name != NUMBERS:
                start = f"{name}/"
                parts = {part.removeprefix(start): t for part, t in total.items() if part.startswith(start)}
                dtype, device = next((t.dtype, t.device) for t in vector.values())
                sums[name] = Vec(self.point.decode(parts, dtype)).only(vector).to(device)
        return sums

    def _check_room(self, clients: int) -> None:
        if clients > self.point.room:
            self.check(max(clients, self.threshold))


@cache
def _keys(count: int) -> dict[str, MaskKey]:
    """Keys of so many clients of a simulation; masks cancel, so nothing depends on them."""
    from fedapm.uploads.masks.keys import MaskKey

    return {str(k): MaskKey() for k in range(count)}
