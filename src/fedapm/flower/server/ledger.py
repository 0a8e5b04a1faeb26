"""Ledger: which replies of each client the server has accepted. The clients' states are on their nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedapm.flower.problem import DataSummary
from fedapm.flower.server.norm_limit import Seen, read_seen
from fedapm.flower.transport.version import FRESH, round_of
from fedapm.simulation.stores.base import Undo


@dataclass(frozen=True)
class Entry:
    """One client's entry."""

    accepted: str = FRESH
    """The version of the last accepted reply."""
    contribution: str = ""
    """The file of the sum of its changes, where the server keeps it."""
    correction: str = ""
    """The file of what was counted of the last accepted reply minus what it held, where they differ."""


@dataclass
class Ledger:
    """The clients of a run and the last accepted reply of each."""

    run: str
    data_summaries: dict[str, DataSummary]
    """Each client's data summary by id, in client order."""
    start: str
    """The digest of u⁰."""
    round: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    norms: Seen = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """The fingerprint of each client's key."""
    exhausted: frozenset[int] = frozenset()
    """The clients whose privacy budget is spent."""

    def __len__(self) -> int:
        return len(self.data_summaries)

    @property
    def ids(self) -> list[str]:
        """The clients' ids, in order."""
        return list(self.data_summaries)

    def entry(self, client: int) -> Entry:
        """A client's entry."""
        return self.entries.get(client, Entry())

    def settle(self, round: int, changes: Mapping[int, Entry], norms: Seen, exhausted: Collection[int] = ()) -> Undo:
        """Apply a round's changes; returns a function that undoes them."""
        before = self.round, self.entries, self.norms, self.exhausted
        self.round, self.entries, self.norms = round, {**self.entries, **changes}, norms
        self.exhausted = self.exhausted | {*exhausted}

        def undo() -> None:
            self.round, self.entries, self.norms, self.exhausted = before

        return undo

    def note(self) -> dict[str, Any]:
        """The ledger as JSON, for a checkpoint."""
        return {
            "run": self.run,
            "start": self.start,
            "round": self.round,
            "clients": {client: data_summary.to_json() for client, data_summary in self.data_summaries.items()},
            "entries": {
                str(k): [e.accepted, e.contribution, *([e.correction] if e.correction else [])]
                for k, e in sorted(self.entries.items())
            },
            "norms": self.norms,
            "keys": dict(self.keys),
        } | ({"exhausted": sorted(self.exhausted)} if self.exhausted else {})

    @classmethod
    def read(cls, note: Mapping[str, Any]) -> Ledger:
        """The inverse of :meth:`note`."""
        entries = {int(k): Entry(str(accepted), *map(str, files)) for k, (accepted, *files) in note["entries"].items()}
        for entry in entries.values():
            round_of(entry.accepted)
        data_summaries = {
            str(client): DataSummary.from_json(data_summary) for client, data_summary in note["clients"].items()
        }
        norms = read_seen(note.get("norms", {}))
        keys = {str(client): str(key) for client, key in note.get("keys", {}).items()}
        exhausted = frozenset(int(k) for k in note.get("exhausted", ()))
        start, round = str(note["start"]), int(note["round"])
        return cls(str(note["run"]), data_summaries, start, round, entries, norms, keys, exhausted)
