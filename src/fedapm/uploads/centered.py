"""Centered: no message is farther from the last round's mean than a radius.

    m_i = c + clip(m_i − c, S)        on the client, which keeps what it sent
    c ← (1/s) Σ m_i                   the mean of the round, for the next one

Clipping around the last mean is the client's own work, so it also holds where the server sees only sums. Where the
server sees single messages, it does the same again: nothing happens to those who did it themselves.

Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization. ICML 2021.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedapm.core.algorithm import NUMBERS, Aggregate, ClientUpdate, State, Upload
from fedapm.core.batched import BatchedVec, PerClient, batched, numbers
from fedapm.core.task import Task
from fedapm.core.vec import Vec
from fedapm.uploads.layer import Layer
from fedapm.uploads.robust import vector_of, with_vector

CENTER, UNIT = "center", "unit"
"""The field of states and broadcasts that holds the last mean, in units of the model, and the number that is sent with
a message to say what it is a multiple of."""
SLACK = 1e-6
"""How much longer, relative to the radius, rounding may make a message that was clipped."""


@dataclass(frozen=True)
class Centered(Layer):
    """A method whose messages are clipped around the mean of the last round."""

    radius: float
    """S, in units of the model."""

    @property
    def screens(self) -> bool:
        """Single messages are clipped once more."""
        return True

    def server_init(self, u0: Vec) -> State:
        """The first messages are clipped around zero."""
        (zero,) = (dict.fromkeys(self.told, u0.zeros()) | dict(self.averaged(u0))).values()
        return self.method.server_init(u0).replace(**{CENTER: zero})

    def broadcast(self, server: State) -> State:
        """The method's own, and the last mean."""
        return self.method.broadcast(_own(server)).replace(**{CENTER: server[CENTER]})

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The method's local work, and of its message what is near enough."""
        update = self.method.client_update(_own(broadcast), state, task)
        upload, center = update.upload, broadcast.vectors[CENTER]
        name = vector_of(upload)
        sent = self._clipped_each(upload.sums[name], upload.unit, center)
        kept: dict[str, Any] = dict(update.state)
        if (field := self.told.get(name)) is not None:
            kept[field] = state[field] + sent  # type: ignore[operator]  # a vector, as the message is
        others = upload.sums.get(NUMBERS)
        said = numbers(sent, **{UNIT: upload.unit})
        sums = {**upload.sums, name: sent, NUMBERS: said if others is None else others | said}
        return ClientUpdate(replace(upload, sums=sums), State(**kept), update.u)

    def counted(self, server: State, uploads: Sequence[Upload]) -> list[Upload | None]:
        """What is too far away is clipped, with the unit that most clients name."""
        passed = self.method.counted(_own(server), uploads)
        units = [float(upload.sums[NUMBERS][UNIT]) for upload in passed if upload is not None]
        if not units:
            return passed
        unit, center = statistics.median_low(units), server.vectors[CENTER]

        def near(upload: Upload) -> Upload:
            name, said = vector_of(upload), upload.sums[NUMBERS]
            vector = self._clipped(upload.sums[name], unit, center)
            if float(said[UNIT]) != unit:
                agreed = said.without([UNIT]) | Vec({UNIT: said[UNIT].new_full((1,), unit)})
                upload = replace(upload, sums={**upload.sums, NUMBERS: agreed})
            return upload if vector is upload.sums[name] else with_vector(upload, name, vector)

        return [None if upload is None else near(upload) for upload in passed]

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The method's own; the mean of the round is the next center."""
        name = next(name for name in total.sums if name != NUMBERS)
        unit = total.mean(NUMBERS)[UNIT].item()
        center = total.mean(name) / unit if unit else state.vectors[CENTER]
        return self.method.server_update(_own(state), total, m).replace(**{CENTER: center})

    def _clipped_each(self, message: Vec, unit: Any, center: Vec) -> Vec:
        if not isinstance(message, BatchedVec):
            return self._clipped(message, unit, center)
        units = unit.values.tolist() if isinstance(unit, PerClient) else [unit] * message.count
        rows = zip(message.unbind(), units, strict=True)
        return batched([self._clipped(row, each, center) for row, each in rows])

    def _clipped(self, message: Vec, unit: float, center: Vec) -> Vec:
        """A message within the radius; the same one where it is near enough already, or not finite."""
        if not message.is_finite() or not unit:
            return message
        away = message / unit - center
        distance = away.norm()
        if distance <= self.radius * (1 + SLACK):
            return message
        return unit * (center + away * (self.radius / distance))


def _own(state: State) -> State:
    """What the method itself keeps, or broadcasts."""
    return State(**{name: value for name, value in state.items() if name != CENTER})
