"""Traffic: how many messages were sent and received, and their size."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flwr.app import RecordDict

from fedapm.core.record import RoundRecord
from fedapm.flower.transport.codec import size
from fedapm.runs.layout import MESSAGES
from fedapm.runs.records import JsonLines
from fedapm.simulation.loop import Callback
from fedapm.simulation.state import RunState


@dataclass
class Traffic:
    """Messages and bytes so far; the bytes are those of fields and tensors, without Flower's own."""

    sent: int = 0
    bytes_sent: int = 0
    received: int = 0
    bytes_received: int = 0

    def count_sent(self, content: RecordDict) -> None:
        """Count a message that was sent."""
        self.sent, self.bytes_sent = self.sent + 1, self.bytes_sent + size(content)

    def count_received(self, content: RecordDict) -> None:
        """Count a reply that was received."""
        self.received, self.bytes_received = self.received + 1, self.bytes_received + size(content)


class MessageLog(Callback):
    """Callback that writes one line per round: the traffic since the line before.

    The message that evaluates a round also starts the next, so a round's training is mostly in the line before its own.
    """

    def __init__(self, folder: Path, traffic: Traffic) -> None:
        self.lines, self.traffic = JsonLines(folder / MESSAGES), traffic
        self._written = Traffic()

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Add a line."""
        del record, seconds
        now, before = asdict(self.traffic), asdict(self._written)
        self.lines.append({"round": state.round} | {name: now[name] - before[name] for name in now})
        self._written = replace(self.traffic)
