"""Traffic: how many messages went out and came back, and what they weighed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flwr.app import RecordDict

from fedapm.flower.transport.codec import size
from fedapm.runs.layout import MESSAGES
from fedapm.runs.records import JsonLines
from fedapm.simulation.loop import Progress, Record


@dataclass
class Traffic:
    """What has gone over a link since it was opened; bytes are those of notes and vectors, without Flower's own."""

    sent: int = 0
    bytes_sent: int = 0
    received: int = 0
    bytes_received: int = 0

    def out(self, content: RecordDict) -> None:
        """A message went out."""
        self.sent, self.bytes_sent = self.sent + 1, self.bytes_sent + size(content)

    def back(self, content: RecordDict) -> None:
        """A reply came."""
        self.received, self.bytes_received = self.received + 1, self.bytes_received + size(content)


class MessageLog:
    """Writes a line a round: what went over the link since the line before.

    The message that judges a round also begins the next, so a round's training is mostly in the line before its own.
    """

    def __init__(self, folder: Path, traffic: Traffic) -> None:
        self.lines, self.traffic = JsonLines(folder / MESSAGES), traffic
        self._told = Traffic()

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        """Add a line."""
        del record, seconds
        now, before = asdict(self.traffic), asdict(self._told)
        self.lines.append({"round": progress.round} | {name: now[name] - before[name] for name in now})
        self._told = replace(self.traffic)

    def on_run_end(self, progress: Progress, status: str) -> None:
        """Nothing to close."""
