"""RunState: where a run stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    records: str = ""
    """The running digest of the records so far, where somebody keeps it; see :func:`fedapm.runs.records.chained`."""
    stopped: str | None = None
    """Why a callback ended the run here, before its last round."""

    def info(self, status: str) -> dict[str, Any]:
        """What run.json says of how the run ended."""
        return {"status": status, "finished": self.round} | ({"stopped": self.stopped} if self.stopped else {})
