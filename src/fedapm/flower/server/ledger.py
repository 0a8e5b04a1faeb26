"""Ledger: what the server remembers of clients. Not their states, only which of their answers it has accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedapm.flower.problem import DataSummary
from fedapm.flower.transport.version import FRESH, round_of
from fedapm.simulation.stores.base import Undo


@dataclass(frozen=True)
class Entry:
    """What is known of one client."""

    accepted: str = FRESH
    """The version of the last answer that was accepted."""
    contribution: str = ""
    """The file of the sum of its changes, where the server keeps it."""


@dataclass
class Ledger:
    """The population of a run, and where each client stands."""

    run: str
    data_summaries: dict[str, DataSummary]
    """Every client's outline by its id, in the order of every list."""
    start: str
    """The digest of u⁰."""
    round: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.data_summaries)

    @property
    def ids(self) -> list[str]:
        """The clients' ids, in order."""
        return list(self.data_summaries)

    def entry(self, client: int) -> Entry:
        """Where a client stands."""
        return self.entries.get(client, Entry())

    def settle(self, round: int, changes: Mapping[int, Entry]) -> Undo:
        """Put a round's changes in place; the result takes them back."""
        before, entries = self.round, self.entries
        self.round, self.entries = round, {**entries, **changes}

        def undo() -> None:
            self.round, self.entries = before, entries

        return undo

    def note(self) -> dict[str, Any]:
        """The ledger as a checkpoint holds it."""
        return {
            "run": self.run,
            "start": self.start,
            "round": self.round,
            "clients": {client: data_summary.to_json() for client, data_summary in self.data_summaries.items()},
            "entries": {str(k): [e.accepted, e.contribution] for k, e in sorted(self.entries.items())},
        }

    @classmethod
    def read(cls, note: Mapping[str, Any]) -> Ledger:
        """The inverse of :meth:`note`."""
        entries = {int(k): Entry(str(accepted), str(kept)) for k, (accepted, kept) in note["entries"].items()}
        for entry in entries.values():
            round_of(entry.accepted)
        data_summaries = {
            str(client): DataSummary.from_json(data_summary) for client, data_summary in note["clients"].items()
        }
        return cls(str(note["run"]), data_summaries, str(note["start"]), int(note["round"]), entries)
