"""NormLimit: refuses an update that is far longer than updates usually are.

The measure is the median norm of the last accepted updates and of those at hand. Refusing keeps the invariant, because
a refused update counts as never sent and the client goes on from its last accepted state; a clipped one would not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedapm.core.algorithm import Upload
from fedapm.core.vec import Vec
from fedapm.flower.fields import LARGEST, items, number, table

MEMORY = 100
"""How many norms are remembered of each sum."""
FEWEST = 3
"""How many norms it takes to tell what is usual."""

Norms = dict[str, float]
"""The norm of each sum of an upload."""
Seen = dict[str, list[float]]
"""The norms of the last accepted updates, for each sum, oldest first. They are part of a checkpoint."""


@dataclass(frozen=True)
class NormLimit:
    """How many times the usual norm an update may have; 0 for any."""

    factor: float

    def refused(self, seen: Seen, uploads: Mapping[int, Upload]) -> dict[int, str]:
        """The clients whose updates are too long, with what is wrong with each.

        Args:
            seen: The norms of the last accepted updates.
            uploads: The updates at hand, by client.
        """
        norms = {client: norms_of(upload) for client, upload in uploads.items()}
        wrong = {
            client: f"its {name} is too long to be added up (norm {norm:.3g})"
            for client, own in norms.items()
            for name, norm in own.items()
            if not norm <= LARGEST
        }
        if not self.factor:
            return wrong
        for name in {name: None for own in norms.values() for name in own}:
            known = [*seen.get(name, ()), *(own[name] for own in norms.values())]
            if len(known) < FEWEST or not (usual := statistics.median_low(known)):
                continue
            for client, own in norms.items():
                if own[name] > self.factor * usual:
                    wrong.setdefault(
                        client,
                        f"its {name} is {own[name] / usual:.3g} times as long as usual (norm {own[name]:.3g}); at most "
                        f"{self.factor:g} times is allowed (flower.norm_limit)",
                    )
        return wrong


def remembered(seen: Seen, uploads: Iterable[Upload]) -> Seen:
    """The norms of the last accepted updates when some more are accepted."""
    after = {name: list(norms) for name, norms in seen.items()}
    for upload in uploads:
        for name, norm in norms_of(upload).items():
            after[name] = [*after.get(name, ()), norm][-MEMORY:]
    return after


def read_seen(note: Any) -> Seen:
    """The norms that a checkpoint holds, checked."""
    rows = table(note, "its norms", note if isinstance(note, Mapping) else ())
    return {
        str(name): [number(norm, "a norm", 0.0) for norm in items(norms, "its norms", MEMORY)]
        for name, norms in rows.items()
    }


def norms_of(upload: Upload) -> Norms:
    """The norm of each sum; single numbers are no vectors and are left out."""
    return {name: _norm(vector) for name, vector in upload.sums.items() if any(t.numel() > 1 for t in vector.values())}


def _norm(vector: Vec) -> float:
    try:
        return vector.norm()
    except OverflowError:
        return math.inf
