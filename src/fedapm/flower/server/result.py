"""A round's accepted replies, as the loop asks for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fedapm.core.algorithm import Aggregate, Algorithm, State, Upload
from fedapm.core.vec import Vec
from fedapm.flower.server.contributions import NONE, Contributions, withdrawn
from fedapm.flower.server.ledger import Entry, Ledger
from fedapm.flower.server.masks import MaskedSum
from fedapm.flower.server.norm_limit import remembered
from fedapm.flower.server.replies import TrainReply
from fedapm.flower.transport.version import version_id
from fedapm.simulation.engines.base import local_work
from fedapm.simulation.stores.base import Undo
from fedapm.uploads import screened


@dataclass(frozen=True)
class Books:
    """Where it is written down what was accepted."""

    ledger: Ledger
    contributions: Contributions | None = None
    corrections: Contributions | None = None
    norms: bool = True
    """Whether the norms of updates are remembered."""


@dataclass(frozen=True)
class Changes:
    """What a round changes about clients beside what they sent."""

    gone: Mapping[int, Mapping[str, Vec]] = field(default_factory=dict)
    """Those that begin anew, each with what is no longer counted."""
    exhausted: Collection[int] = ()
    """Those whose privacy budget is spent."""


class FlowerRoundResult:
    """A round's accepted replies.

    Args:
        round: The round.
        token: That of its announcement.
        trained: The replies that can be used, by client.
        books: Where they are written down.
        changes: What the round changes beside.
        masked: What was learnt of them, where messages are masked.
        abandoned: Whether none of them can be used.
    """

    def __init__(
        self,
        round: int,
        token: str,
        trained: Mapping[int, TrainReply],
        books: Books,
        changes: Changes,
        masked: MaskedSum | None = None,
        abandoned: bool = False,
    ) -> None:
        self.abandoned, self._masked = abandoned, masked
        self.round, self.token, self._trained = round, token, trained
        self._books, self._changes, self._told = books, changes, dict[int, Mapping[str, Vec]]()
        self.good: list[int] = list(trained)
        uploads = [reply.upload for reply in trained.values()]
        self.bytes_up = sum(upload.nbytes for upload in uploads) if masked is None else masked.bytes_up
        self.bytes_told = 0
        self.local = local_work([reply.log for reply in trained.values()])
        self.total = self._with_withdrawn(Aggregate.of(uploads) if masked is None else masked.total)

    def screen(self, method: Algorithm, server: State) -> None:
        """Count what the method counts of each reply; the clients are told with their next message."""
        screening = screened(method, server, [self._trained[client].upload for client in self.good])
        self.good = [self.good[k] for k in screening.kept]
        self._trained = {
            client: replace(self._trained[client], upload=upload)
            for client, upload in zip(self.good, screening.counted, strict=True)
        }
        self._told = dict(zip(self.good, screening.corrections, strict=True))
        self.total, self.bytes_told = self._with_withdrawn(screening.total), screening.nbytes

    def _with_withdrawn(self, total: Aggregate) -> Aggregate:
        back = withdrawn(self._changes.gone.values()) if total.count else {}
        sums = {name: vector + back[name] if name in back else vector for name, vector in total.sums.items()}
        return replace(total, sums=sums, withdrawn=back)

    def commit(self) -> Undo:
        """Write down whose replies were accepted, and who begins anew; the result takes that back."""
        books = self._books
        entries = {client: Entry() for client in self._changes.gone}
        for client, reply in self._trained.items():
            version, contribution = version_id(self.round, self.token), NONE
            if books.contributions is not None:
                before = books.ledger.entry(client).contribution
                contribution = books.contributions.add(client, version, before, reply.upload)
            correction = NONE
            if books.corrections is not None and (told := self._told.get(client)):
                correction = books.corrections.add(client, version, NONE, Upload(told))
            entries[client] = Entry(version, contribution, correction)
        uploads = [reply.upload for reply in self._trained.values()]
        if self._masked is not None:
            uploads = [self._masked.mean()]
        norms = remembered(books.ledger.norms, uploads) if books.norms else books.ledger.norms
        return books.ledger.settle(self.round, entries, norms, self._changes.exhausted)
