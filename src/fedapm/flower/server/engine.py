"""The engine that runs clients on Flower's nodes. To the loop it is one more engine."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from torch import Tensor

from fedapm.core.algorithm import Aggregate, Algorithm, State, Upload
from fedapm.core.messages import OnceLogger
from fedapm.core.metrics import Score
from fedapm.core.record import RoundRecord
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.fields import LARGEST
from fedapm.flower.server.checkpoint import ServerCheckpoints
from fedapm.flower.server.contributions import NONE, Contributions, withdrawn
from fedapm.flower.server.exchange import Announcement, Event, RoundExchange, RoundReplies
from fedapm.flower.server.ledger import Entry, Ledger
from fedapm.flower.server.masks import Abandoned, MaskedSum, MaskServer
from fedapm.flower.server.norm_limit import NormLimit, norms_of, remembered
from fedapm.flower.server.replies import ClientReply, Expected, ReplyForm, TrainReply
from fedapm.flower.settings import Deployment
from fedapm.flower.transport import codec
from fedapm.flower.transport.version import version_id
from fedapm.simulation.checkpoint import check_same_model
from fedapm.simulation.engines.base import Engine, Resumed, local_work
from fedapm.simulation.problem import Problem
from fedapm.simulation.state import RunState
from fedapm.simulation.stores.base import Undo, flatten
from fedapm.uploads import Announced, Masked, layer_of, screened
from fedapm.uploads.masks.streams import Group

logger = logging.getLogger(__name__)
REMARKS = 50
"""How many different remarks of a client are passed on."""


@dataclass(frozen=True)
class Shown:
    """Who has which broadcast, as far as this process knows."""

    round: int = -1
    token: str = ""
    clients: frozenset[int] = frozenset()


class FlowerRoundResult:
    """A round's accepted replies."""

    def __init__(
        self,
        round: int,
        token: str,
        trained: Mapping[int, TrainReply],
        gone: Mapping[int, Mapping[str, Vec]],
        ledger: Ledger,
        contributions: Contributions | None,
        corrections: Contributions | None = None,
        masked: MaskedSum | None = None,
        abandoned: bool = False,
    ) -> None:
        self.abandoned, self._masked = abandoned, masked
        self.round, self.token, self._trained = round, token, trained
        self._gone, self._ledger, self._contributions = gone, ledger, contributions
        self._corrections, self._told = corrections, dict[int, Mapping[str, Vec]]()
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
        back = withdrawn(self._gone.values()) if total.count else {}
        sums = {name: vector + back[name] if name in back else vector for name, vector in total.sums.items()}
        return Aggregate(sums, total.weight, total.count, back, norms=total.norms)

    def commit(self) -> Undo:
        """Write down whose replies were accepted, and who begins anew; the result takes that back."""
        changes = {client: Entry() for client in self._gone}
        for client, reply in self._trained.items():
            version, contribution = version_id(self.round, self.token), NONE
            if self._contributions is not None:
                before = self._ledger.entry(client).contribution
                contribution = self._contributions.add(client, version, before, reply.upload)
            correction = NONE
            if self._corrections is not None and (told := self._told.get(client)):
                correction = self._corrections.add(client, version, NONE, Upload(told))
            changes[client] = Entry(version, contribution, correction)
        uploads = [reply.upload for reply in self._trained.values()]
        if self._masked is not None:
            uploads = [self._masked.mean()]
        return self._ledger.settle(self.round, changes, remembered(self._ledger.norms, uploads))


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
    ) -> None:
        self.exchange, self.ledger, self.checkpoints = exchange, ledger, checkpoints
        self.problem, self.form = problem, form
        self._server: State | None = None
        """The server's state, from which the next round starts."""
        self.experiment, self.settings = deployment.experiment, deployment.flower
        self.algorithm: Algorithm = deployment.experiment.method
        self.contributions, self._requested, self._event = contributions, requested, event
        self._log = OnceLogger(logger)
        self._reported: set[tuple[int, str]] = set()
        self._remarks: defaultdict[int, set[str]] = defaultdict(set)
        self._next: Sequence[int] = []
        self._ahead: RoundReplies | None = None
        self._evaluated: RoundReplies | None = None
        self._closed = False
        self._shown = Shown()
        layer = layer_of(self.algorithm, Masked)
        seed = deployment.experiment.engine.seed
        self.masks = MaskServer(layer, exchange, ledger.run, seed, form.upload) if layer is not None else None
        self._group: Group | None = None
        """Who was asked to mask for whom."""
        self._abandoned = 0
        """How many rounds in a row were abandoned."""
        self._had: dict[int, frozenset[int]] = {}
        """For the rounds that were last announced: who had the broadcast before."""
        summaries = list(ledger.data_summaries.values())
        self._common: dict[str, Any] = {
            "protocol": codec.PROTOCOL,
            "run": ledger.run,
            "settings": self.experiment.tables(),
            "m": len(ledger),
            "samples": sum(summary.train for summary in summaries),
            "batches": problem.mean_batches,
            "classes": max(summary.classes for summary in summaries),
            "u0": {"digest": ledger.start, "shapes": codec.shapes(problem.u0)},
        }
        if problem.frozen_digest:
            self._common["u0"]["frozen"] = problem.frozen_digest

    def run_round(self, round: int, selected: Sequence[int], broadcast: State) -> FlowerRoundResult:
        """The local work of the selected clients; where it was asked for ahead, what came of that."""
        replies, self._ahead = self._ahead, None
        if replies is None or (replies.announcement.training, [*replies.announcement.selected]) != (round, [*selected]):
            replies = self._announce(Announcement(round - 1, False, selected, selected), broadcast)
        trained = {k: reply for k in replies.usable if (reply := replies.answers[k].trained) is not None}
        kept = self.contributions if self.algorithm.cumulative else None
        gone = self._begin_anew(replies, round)
        if self.masks is not None:
            return self._masked_result(round, replies, gone)
        told = self.checkpoints.corrections
        return FlowerRoundResult(round, replies.announcement.token, trained, gone, self.ledger, kept, told)

    def _masked_result(
        self, round: int, replies: RoundReplies, gone: Mapping[int, Mapping[str, Vec]]
    ) -> FlowerRoundResult:
        """What is learnt of masked replies: their sum, or nothing."""
        token = replies.announcement.token
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
            return FlowerRoundResult(round, token, {}, gone, self.ledger, None, abandoned=True)
        self._abandoned = 0
        return FlowerRoundResult(round, token, found.clients, gone, self.ledger, None, masked=found)

    def _masked_sum(self, replies: RoundReplies) -> MaskedSum:
        """The sum of a round, looked at as single replies are without masks."""
        assert self.masks is not None
        if self._group is None:
            raise Abandoned("nobody was asked")
        found = self.masks.total(self._group, replies)
        if found.clients:
            wrong = NormLimit(self.settings.norm_limit).refused(self.ledger.norms, {0: found.mean()})
            if wrong:
                raise Abandoned(wrong[0].replace("its ", "the mean ", 1))
            if not self._keeps_finite(found.total):
                raise Abandoned("with its sum the server's state would not be finite")
        return found

    def heard(self, round: int, before: Sequence[int]) -> Collection[int]:
        """The clients that were sent a change alone."""
        del before
        return self._had.get(round, frozenset())

    def prefetch(self, round: int, selected: Sequence[int]) -> None:
        """Hear who trains next: the message that asks for an evaluation asks these to train as well."""
        del round
        self._next = selected

    def evaluate(self, broadcast: State, view: str) -> list[dict[str, Score]]:
        """Every client's scores; the same message begins the next round."""
        round, everyone = self.ledger.round, range(len(self.ledger))
        if self._evaluated is None or self._evaluated.announcement.round != round:
            last = not self._next
            self._evaluated = self._announce(Announcement(round, True, self._next, list(everyone), last), broadcast)
            self._ahead = None if last else self._evaluated
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
        tensors, note = flatten("down", broadcast)
        vectors = codec.block(tensors)
        steps, base = self._change(announcement.round)
        change = codec.block(steps) if steps else None
        engine, personal = self.experiment.engine, self.algorithm.personal_field is not None
        last = announcement.round >= engine.rounds
        closing = engine.final_personal_epochs if last and personal else 0
        common = self._common | {
            "down": note,
            "round": announcement.round,
            "token": announcement.token,
            "evaluate": announcement.evaluate,
            "closing": closing,
            "finish": last and engine.save_models,
            "limit": self.exchange.lifetime,
        }
        training = announcement.training
        group = self._begin_group(announcement)
        if group is not None and self.masks is not None:
            announcement = replace(announcement, enough=partial(self.masks.enough, group))
        certain = self.algorithm.certain(broadcast, self.problem.task(0, training)) if training is not None else {}

        def trains(client: int) -> int | None:
            if client not in announcement.selected or (group is not None and self.ledger.ids[client] not in group.keys):
                return None
            return training

        def message_for(client: int) -> RecordDict:
            own = {
                "client": self.ledger.ids[client],
                "position": client,
                "accepted": self.ledger.entry(client).accepted,
                "keep": self.checkpoints.oldest_version(client),
                "train": trains(client),
            }
            if group is not None and self.masks is not None and trains(client) is not None:
                own["mask"] = self.masks.note(group, client)
            with_change = client in base.clients
            own |= {"base": base.token} if with_change else {}
            if (file := self.ledger.entry(client).correction) != NONE and self.checkpoints.corrections is not None:
                told, _ = flatten("correction", self.checkpoints.corrections.read(file))
                return codec.records(common | own, codec.block((steps if with_change else tensors) | told))
            return codec.records(common | own, change if with_change else vectors)

        def expected_of(client: int) -> Expected:
            return Expected(
                self.form,
                run=self.ledger.run,
                token=announcement.token,
                client=self.ledger.ids[client],
                accepted=self.ledger.entry(client).accepted,
                round=trains(client),
                evaluated=announcement.evaluate,
                closed=closing > 0,
                weight=self.problem.alphas[client] if self.form.upload.weighed else None,
                heaviest=max(len(self.ledger), self.ledger.data_summaries[self.ledger.ids[client]].train),
                certain=certain,
            )

        replies = self.exchange.gather(announcement, message_for, expected_of, self._vet)
        if group is not None and self.masks is not None:
            self.masks.answered(group, replies)
        self._had = {announcement.about: base.clients}
        # who has answered has stored the broadcast before
        answered = frozenset(k for k, answer in replies.answers.items() if answer.bad is None)
        self._shown = Shown(announcement.round, announcement.token, answered)
        for client in sorted(replies.answers):
            answer = replies.answers[client]
            self._remark(client, answer.remarks)
            if answer.lost is not None:
                self._once(announcement.about, client, f"its state is lost: {answer.lost}")
        return replies

    def _begin_group(self, announcement: Announcement) -> Group | None:
        """Who masks for whom in the next round."""
        if announcement.training is None:
            return None
        self._group = None
        if self.masks is not None:
            minimum = self.settings.minimum
            self._group = self.masks.begin(announcement.training, announcement.selected, minimum)
        return self._group

    def _change(self, round: int) -> tuple[dict[str, Tensor], Shown]:
        """The broadcast after a round as the change of the one before, and who has that."""
        layer = layer_of(self.algorithm, Announced)
        if layer is None or self._server is None or self._shown.round != round - 1:
            return {}, Shown()
        return flatten("change", {"step": layer.step(self._server)})[0], self._shown

    def _vet(self, updates: Mapping[int, Upload]) -> dict[int, ClientReply]:
        """The updates that must not be used: far too long ones, and those with which the state would be infinite."""
        if self.masks is not None:
            return {}  # only their sum can be looked at
        limit = NormLimit(self.settings.norm_limit)
        wrong = {
            k: ClientReply(bad=why, diverged=not all(norm <= LARGEST for norm in norms_of(updates[k]).values()))
            for k, why in limit.refused(self.ledger.norms, updates).items()
        }
        left = {k: upload for k, upload in updates.items() if k not in wrong}
        while left and not self._stays_finite(left):
            longest = max(left, key=lambda k: sum(norms_of(left[k]).values()))
            del left[longest]
            why = "with its update the server's state would not be finite"
            wrong[longest] = ClientReply(bad=why, diverged=True)
        return wrong

    def _stays_finite(self, updates: Mapping[int, Upload]) -> bool:
        if self._server is None:
            return True
        try:
            return self._keeps_finite(self._counted(self._server, [*updates.values()]))
        except ArithmeticError:
            return False

    def _keeps_finite(self, total: Aggregate) -> bool:
        if self._server is None:
            return True
        try:
            return self.algorithm.server_update(self._server, total, len(self.ledger)).is_finite()
        except ArithmeticError:
            return False

    def _counted(self, server: State, uploads: Sequence[Upload]) -> Aggregate:
        if not self.algorithm.screens:
            return Aggregate.of(uploads)
        total = screened(self.algorithm, server, uploads).total
        return total if total.count else Aggregate.of(uploads)

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
            decided = self._decide(client)
            if isinstance(decided, str):
                self._once(round, client, f"left out: {decided}")
            else:
                gone[client] = decided
                self._once(round, client, "begins anew: what it had sent is no longer counted")
        return gone

    def _decide(self, client: int) -> dict[str, Vec] | str:
        """What must be taken back so that a client can begin anew, or why it must not."""
        entry, cumulative = self.ledger.entry(client), self.algorithm.cumulative
        if cumulative == ():
            return {}
        if self.masks is not None:
            return "under masks the server does not know what it has sent; restore its folder from a backup"
        if self.settings.lost == "wait" and not self._requested(client, entry.accepted):
            return "restore its folder from a backup, or re-admit it (fedapm flower readmit)"
        if cumulative is None or self.contributions is None or entry.contribution == NONE:
            why = "flower.keep_contributions is off" if cumulative else "its method does not say what it remembers"
            return f"{why}, so only a backup of its folder can bring it back"
        try:
            return self.contributions.read(entry.contribution)
        except FedapmError as error:
            return str(error)

    def _once(self, round: int, client: int, what: str) -> None:
        """Tell of something that would be as true in every round that follows."""
        if (client, what) not in self._reported:
            self._reported.add((client, what))
            self._event(round, self.ledger.ids[client], what)
