"""The engine that runs clients on Flower's nodes. To the loop it is one more engine."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fedapm.core.algorithm import State
from fedapm.core.messages import OnceLogger
from fedapm.core.metrics import Score
from fedapm.core.record import RoundRecord
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.server.announcing import Announcer
from fedapm.flower.server.checkpoint import ServerCheckpoints
from fedapm.flower.server.contributions import Contributions
from fedapm.flower.server.exchange import Announcement, Event, RoundExchange, RoundReplies
from fedapm.flower.server.ledger import Ledger
from fedapm.flower.server.lost import LostClients
from fedapm.flower.server.masks import Abandoned, MaskedSum, MaskServer
from fedapm.flower.server.norm_limit import NormLimit
from fedapm.flower.server.releases import Releases
from fedapm.flower.server.replies import ReplyForm, Spending
from fedapm.flower.server.result import Books, Changes, FlowerRoundResult
from fedapm.flower.server.vetting import Vetting
from fedapm.flower.settings import Deployment
from fedapm.simulation.checkpoint import check_same_model
from fedapm.simulation.engines.base import Engine, Resumed
from fedapm.simulation.problem import Problem
from fedapm.simulation.state import RunState
from fedapm.uploads import Masked, layer_of

logger = logging.getLogger(__name__)
REMARKS = 50
"""How many different remarks of a client are passed on."""


class FlowerEngine(Engine):
    """Runs clients where they are; their states stay there, and the ledger says which of them counts.

    A round is one exchange. The broadcast that begins a round is also what the round before it is evaluated with, so
    one message asks for both: when the loop asks for an evaluation, the clients of the next round already train.
    """

    name = "flower"

    def __init__(
        self,
        exchange: RoundExchange,
        deployment: Deployment,
        problem: Problem,
        ledger: Ledger,
        contributions: Contributions | None,
        checkpoints: ServerCheckpoints,
        requested: Callable[[int, str], bool],
        event: Event,
        form: ReplyForm,
        releases: Releases | None = None,
    ) -> None:
        self.ledger, self.checkpoints, self.releases = ledger, checkpoints, releases
        self._server: State | None = None
        """The server's state, from which the next round starts."""
        self.settings, self.algorithm = deployment.flower, deployment.experiment.method
        self.contributions, self._event = contributions, event
        self.spending: dict[int, Spending] = {}
        """What clients have told of what their samples have spent."""
        self._log = OnceLogger(logger)
        self._reported: set[tuple[int, str]] = set()
        self._remarks: defaultdict[int, set[str]] = defaultdict(set)
        self._next: Sequence[int] = []
        self._ends = True
        self._ahead: RoundReplies | None = None
        self._evaluated: RoundReplies | None = None
        self._closed = False
        layer = layer_of(self.algorithm, Masked)
        seed = deployment.experiment.engine.seed
        self.masks = MaskServer(layer, exchange, ledger.run, seed, form.upload) if layer is not None else None
        self.announcer = Announcer(exchange, deployment, problem, checkpoints, form, self.masks)
        self.vetting = Vetting(self.algorithm, NormLimit(self.settings.norm_limit), len(ledger))
        self.lost = LostClients(self.algorithm, self.settings, contributions, requested)
        self._abandoned = 0
        """How many rounds in a row were abandoned."""

    def able(self, round: int, clients: Sequence[int], broadcast: State) -> list[int]:
        """Those of some clients that have not said that their privacy budget is spent."""
        del round, broadcast
        return [client for client in clients if client not in self.ledger.exhausted]

    def run_round(self, round: int, selected: Sequence[int], broadcast: State) -> FlowerRoundResult:
        """The local work of the selected clients; where it was asked for ahead, what came of that."""
        replies, self._ahead = self._ahead, None
        if replies is None or (replies.announcement.training, [*replies.announcement.selected]) != (round, [*selected]):
            replies = self._announce(Announcement(round - 1, False, selected, selected), broadcast)
        exhausted = [k for k, answer in replies.answers.items() if answer.exhausted]
        changes = Changes(self._begin_anew(replies, round), exhausted)
        if self.masks is not None:
            return self._masked_result(round, replies, changes)
        trained = {k: reply for k in replies.usable if (reply := replies.answers[k].trained) is not None}
        nobody = not trained and {*selected} <= {*exhausted}
        return FlowerRoundResult(round, replies.announcement.token, trained, self._books(), changes, abandoned=nobody)

    def _books(self) -> Books:
        kept = self.contributions if self.algorithm.cumulative else None
        return Books(self.ledger, kept, self.checkpoints.corrections, norms=self.vetting.private is None)

    def _masked_result(self, round: int, replies: RoundReplies, changes: Changes) -> FlowerRoundResult:
        """What is learnt of masked replies: their sum, or nothing."""
        token, books = replies.announcement.token, Books(self.ledger, norms=self.vetting.private is None)
        try:
            found = self._masked_sum(replies)
        except Abandoned as error:
            self._event(round, "", f"abandoned: {error}")
            self._abandoned += 1
            if self._abandoned > self.settings.retries:
                raise FedapmError(
                    f"round {round} was abandoned ({error}), as were all of the last {self._abandoned}; what was done "
                    "before is kept, and the same command goes on from there."
                ) from None
            return FlowerRoundResult(round, token, {}, books, changes, abandoned=True)
        self._abandoned = 0
        return FlowerRoundResult(round, token, found.clients, books, changes, masked=found)

    def _masked_sum(self, replies: RoundReplies) -> MaskedSum:
        """The sum of a round, looked at as single replies are without masks."""
        assert self.masks is not None
        if self.announcer.group is None:
            raise Abandoned("nobody was asked")
        found = self.masks.total(self.announcer.group, replies)
        self.vetting.check_sum(found, self._server, self.ledger.norms)
        return found

    def heard(self, round: int, before: Sequence[int]) -> Collection[int]:
        """The clients that were sent a change alone."""
        del before
        return self.announcer.had.get(round, frozenset())

    def prefetch(self, round: int, selected: Sequence[int], last: bool) -> None:
        """Hear who trains next: the message that asks for an evaluation asks these to train as well."""
        del round
        self._next, self._ends = selected, last

    def evaluate(self, broadcast: State, view: str) -> list[dict[str, Score]]:
        """Every client's scores; the same message begins the next round."""
        round, everyone = self.ledger.round, range(len(self.ledger))
        if self._evaluated is None or self._evaluated.announcement.round != round:
            asked = Announcement(round, True, self._next, list(everyone), self._ends)
            self._evaluated = self._announce(asked, broadcast)
            self._ahead = self._evaluated if self._next else None
        found = {
            k: answer.closing_scores if self._closed else answer.scores for k, answer in self._evaluated.answers.items()
        }
        rows = {k: scores[view] for k, scores in found.items() if scores is not None}
        names = next((list(row) for row in rows.values()), ["train_loss", "test_loss"])
        nothing: dict[str, Score] = dict.fromkeys(names)
        return [rows.get(k, nothing) for k in everyone]

    def personalize(self, round: int, broadcast: State, epochs: int) -> None:
        """The last message asks for this as well: the nodes do it when they have evaluated the last round."""
        del round, broadcast, epochs
        self._closed = True

    def drift(self, server: State) -> float | None:
        """How far the clients of the last round were from its result: the nodes measure it when they evaluate."""
        del server
        evaluated = self._evaluated
        if evaluated is None or evaluated.announcement.round != self.ledger.round:
            return None
        gaps = [gap for k in sorted(evaluated.answers) if (gap := evaluated.answers[k].drift) is not None]
        if not gaps:
            return None
        # in this order, so that it is the sum one process would have made
        drift = sum(norm for gap in gaps for norm in gap) / len(gaps)
        return drift if math.isfinite(drift) else None

    def save(self, folder: Path, state: RunState, record: RoundRecord) -> None:
        """Write a checkpoint of the server; the clients' states are on their nodes."""
        self.checkpoints.save(folder, state, self.ledger, record)
        self._server = state.server

    def load(self, folder: Path, start: RunState) -> Resumed | None:
        """Go on from the newest whole checkpoint."""
        saved = self.checkpoints.load(folder)
        if saved is None:
            return None
        check_same_model(folder, saved.state.server, start.server)
        saved.ledger.keys = self.ledger.keys
        self.ledger, self._server = saved.ledger, saved.state.server
        return Resumed(saved.state, saved.record)

    def _announce(self, announcement: Announcement, broadcast: State) -> RoundReplies:
        if self.releases is not None:
            self.releases.sending(announcement.round, broadcast)
        replies = self.announcer.announce(
            announcement,
            broadcast,
            self.ledger,
            self._server,
            lambda updates: self.vetting.refused(updates, self._server, self.ledger.norms),
        )
        for client in sorted(replies.answers):
            answer = replies.answers[client]
            self._remark(client, answer.remarks)
            if answer.spending is not None:
                self.spending[client] = answer.spending
            if answer.lost is not None:
                self._once(announcement.about, client, f"its state is lost: {answer.lost}")
        return replies

    def _remark(self, client: int, remarks: Sequence[str]) -> None:
        """Pass on what a client remarks, as long as it does not remark too much."""
        for remark in remarks:
            if len(self._remarks[client]) < REMARKS:
                self._remarks[client].add(remark)
                self._log.info(remark)
            elif remark not in self._remarks[client]:
                self._log.info(f"client {self.ledger.ids[client]} has more to remark; that is not shown")

    def _begin_anew(self, replies: RoundReplies, round: int) -> dict[int, dict[str, Vec]]:
        """The clients that lost their state and may begin anew, each with what the server must no longer count."""
        gone: dict[int, dict[str, Vec]] = {}
        for client in sorted(k for k, answer in replies.answers.items() if answer.lost is not None):
            decided = self.lost.decide(self.ledger, client)
            if isinstance(decided, str):
                self._once(round, client, f"left out: {decided}")
            else:
                gone[client] = decided
                self._once(round, client, "begins anew: what it had sent is no longer counted")
        return gone

    def _once(self, round: int, client: int, what: str) -> None:
        """Tell of something that would be as true in every round that follows."""
        if (client, what) not in self._reported:
            self._reported.add((client, what))
            self._event(round, self.ledger.ids[client], what)
