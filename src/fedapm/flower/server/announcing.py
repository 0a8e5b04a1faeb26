"""Announcing: the messages of a round, and what must come back for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flwr.app import RecordDict
from torch import Tensor

from fedapm.core.algorithm import Algorithm, State
from fedapm.flower.server.checkpoint import ServerCheckpoints
from fedapm.flower.server.contributions import NONE
from fedapm.flower.server.exchange import Announcement, RoundExchange, RoundReplies, Vet
from fedapm.flower.server.ledger import Ledger
from fedapm.flower.server.masks import MaskServer
from fedapm.flower.server.replies import Expected, ReplyForm
from fedapm.flower.settings import Deployment
from fedapm.flower.transport import codec
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import flatten
from fedapm.uploads import Announced, layer_of
from fedapm.uploads.masks.streams import Group


@dataclass(frozen=True)
class Shown:
    """Who has which broadcast, as far as this process knows."""

    round: int = -1
    token: str = ""
    clients: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Broadcast:
    """What is sent to all: the broadcast itself, whole and as a change of the one before."""

    state: State
    tensors: dict[str, Tensor]
    steps: dict[str, Tensor]
    """The change; empty where it cannot be told as one."""
    base: Shown
    """Who has the broadcast that it is a change of."""


class Announcer:
    """Makes the messages of a round and sends them.

    Args:
        exchange: How clients are asked.
        deployment: The experiment, and how it is run.
        problem: The problem without any data.
        checkpoints: What clients must keep, and what was counted of their replies.
        form: What replies look like.
        masks: What forms groups, where messages are masked.
    """

    def __init__(
        self,
        exchange: RoundExchange,
        deployment: Deployment,
        problem: Problem,
        checkpoints: ServerCheckpoints,
        form: ReplyForm,
        masks: MaskServer | None,
    ) -> None:
        self.exchange, self.experiment, self.problem = exchange, deployment.experiment, problem
        self.checkpoints, self.form, self.masks = checkpoints, form, masks
        self.minimum = deployment.flower.minimum
        self.algorithm: Algorithm = deployment.experiment.method
        self.had: dict[int, frozenset[int]] = {}
        """For the rounds that were last announced: who had the broadcast before."""
        self.group: Group | None = None
        """Who was last asked to mask for whom."""
        self._shown = Shown()

    def announce(
        self, announcement: Announcement, broadcast: State, ledger: Ledger, server: State | None, vet: Vet
    ) -> RoundReplies:
        """Send an announcement to everybody it is for, and collect their replies.

        Args:
            announcement: What is asked, and of whom.
            broadcast: What the server sends.
            ledger: Which replies were accepted.
            server: The server's state, if it is known.
            vet: Looks at the updates of all clients together.
        """
        steps, base = self._change(announcement.round, server)
        sent = Broadcast(broadcast, flatten("down", broadcast)[0], steps, base)
        closing = self._closing(announcement)
        group = self._begin_group(announcement)
        if group is not None and self.masks is not None:
            announcement = replace(announcement, enough=partial(self.masks.enough, group))

        def trains(client: int) -> int | None:
            if client not in announcement.selected or (group is not None and ledger.ids[client] not in group.keys):
                return None
            return announcement.training

        message_for = self._messages(announcement, sent, ledger, closing, trains)
        expected_of = self._expectations(announcement, broadcast, ledger, closing, trains)
        replies = self.exchange.gather(announcement, message_for, expected_of, vet)
        if group is not None and self.masks is not None:
            self.masks.answered(group, replies)
        self.had = {announcement.about: base.clients}
        # who has answered has stored the broadcast before
        answered = frozenset(k for k, answer in replies.answers.items() if answer.bad is None)
        self._shown = Shown(announcement.round, announcement.token, answered)
        return replies

    def _messages(
        self,
        announcement: Announcement,
        sent: Broadcast,
        ledger: Ledger,
        closing: int,
        trains: Callable[[int], int | None],
    ) -> Callable[[int], RecordDict]:
        """What makes each client's message."""
        vectors, change = codec.block(sent.tensors), codec.block(sent.steps) if sent.steps else None
        common = self._common(ledger) | {
            "down": flatten("down", sent.state)[1],
            "round": announcement.round,
            "token": announcement.token,
            "evaluate": announcement.evaluate,
            "closing": closing,
            "finish": announcement.last and self.experiment.engine.save_models,
            "limit": self.exchange.lifetime,
        }

        def message_for(client: int) -> RecordDict:
            own: dict[str, Any] = {
                "client": ledger.ids[client],
                "position": client,
                "accepted": ledger.entry(client).accepted,
                "keep": self.checkpoints.oldest_version(client),
                "train": trains(client),
            }
            if self.group is not None and self.masks is not None and trains(client) is not None:
                own["mask"] = self.masks.note(self.group, client)
            with_change = client in sent.base.clients
            own |= {"base": sent.base.token} if with_change else {}
            if (file := ledger.entry(client).correction) != NONE and self.checkpoints.corrections is not None:
                told, _ = flatten("correction", self.checkpoints.corrections.read(file))
                return codec.records(common | own, codec.block((sent.steps if with_change else sent.tensors) | told))
            return codec.records(common | own, change if with_change else vectors)

        return message_for

    def _expectations(
        self,
        announcement: Announcement,
        broadcast: State,
        ledger: Ledger,
        closing: int,
        trains: Callable[[int], int | None],
    ) -> Callable[[int], Expected]:
        """What makes a description of each client's reply."""
        certain: Mapping[str, Mapping[str, float]] = {}
        unit = 1.0
        if announcement.training is not None:
            task = self.problem.task(0, announcement.training)
            certain, unit = self.algorithm.certain(broadcast, task), self.algorithm.message_unit(broadcast, task)
        privacy = self.experiment.privacy

        def expected_of(client: int) -> Expected:
            return Expected(
                self.form,
                run=ledger.run,
                token=announcement.token,
                client=ledger.ids[client],
                accepted=ledger.entry(client).accepted,
                round=trains(client),
                evaluated=announcement.evaluate,
                closed=closing > 0,
                weight=self.problem.alphas[client] if self.form.upload.weighed else None,
                heaviest=max(len(ledger), ledger.data_summaries[ledger.ids[client]].train),
                certain=certain,
                unit=unit,
                discreet=privacy.active,
                spends=privacy.per_sample,
            )

        return expected_of

    def _common(self, ledger: Ledger) -> dict[str, Any]:
        """The fields that are in every message of a run."""
        summaries = list(ledger.data_summaries.values())
        start = {"digest": ledger.start, "shapes": codec.shapes(self.problem.u0)}
        if self.problem.frozen_digest:
            start["frozen"] = self.problem.frozen_digest
        return {
            "protocol": codec.PROTOCOL,
            "run": ledger.run,
            "settings": self.experiment.tables(),
            "m": len(ledger),
            "samples": sum(summary.train for summary in summaries),
            "batches": self.problem.mean_batches,
            "classes": max(summary.classes for summary in summaries),
            "u0": start,
        }

    def _closing(self, announcement: Announcement) -> int:
        """The epochs of the closing phase that is asked for."""
        personal = self.algorithm.personal_field is not None
        return self.experiment.engine.final_personal_epochs if announcement.last and personal else 0

    def _begin_group(self, announcement: Announcement) -> Group | None:
        """Who masks for whom in the next round."""
        if announcement.training is None:
            return None
        self.group = None
        if self.masks is not None:
            self.group = self.masks.begin(announcement.training, announcement.selected, self.minimum)
        return self.group

    def _change(self, round: int, server: State | None) -> tuple[dict[str, Tensor], Shown]:
        """The broadcast after a round as the change of the one before, and who has that."""
        layer = layer_of(self.algorithm, Announced)
        if layer is None or server is None or self._shown.round != round - 1:
            return {}, Shown()
        return flatten("change", {"step": layer.step(server)})[0], self._shown
