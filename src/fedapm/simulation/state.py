"""RunState: where a run stands."""

from __future__ import annotations

from dataclasses import dataclass

from fedapm.core.algorithm import State


@dataclass(frozen=True)
class RunState:
    """Where a run stands after a round. Clients' states are with the engine; random streams are keyed by round."""

    round: int
    server: State
    bytes_up: int = 0
    """What all clients have sent so far."""
    bytes_down: int = 0
    """What they have received."""
