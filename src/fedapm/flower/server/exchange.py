"""Gathering: one announcement, from sending it to having the answers it takes to go on."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import MessageType, RecordDict

from fedapm.errors import FedapmError
from fedapm.flower.server import replies
from fedapm.flower.server.node_registry import Claimed, NodeRegistry
from fedapm.flower.server.replies import ClientReply, Expected
from fedapm.flower.settings import FlowerSettings
from fedapm.flower.transport.transport import POLL, Exchange, NodeReply, Transport

LOOK = 5.0
"""Seconds between two looks for nodes that came back."""
SPARE = 60.0
"""Seconds a message lives beyond the time anybody waits for it."""

Event = Callable[[int, str, str], None]
"""Hears of something worth an operator's notice: the round, the client's id, what happened."""


@dataclass(frozen=True)
class Announcement:
    """What is asked of whom: the state after a round, to be judged, trained from, or both."""

    round: int
    """The round whose result is broadcast."""
    evaluate: bool
    selected: Sequence[int]
    """Who trains in the next round."""
    everyone: Sequence[int]
    """Who gets a message at all."""
    last: bool = False
    """Whether nothing follows, so that it is worth waiting for everybody."""
    token: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def training(self) -> int | None:
        """The round that is trained; None where nobody trains."""
        return self.round + 1 if self.selected else None

    @property
    def about(self) -> int:
        """The round that what happens meanwhile belongs to."""
        return self.round if self.training is None else self.training


@dataclass
class RoundReplies:
    """The answers to an announcement."""

    announcement: Announcement
    answers: dict[int, ClientReply] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    """Why there is no answer, where something is known."""

    @property
    def usable(self) -> list[int]:
        """The selected clients whose training counts, in order."""
        asked = self.announcement.selected
        return [k for k in asked if k in self.answers and self.answers[k].trained is not None]

    @property
    def scored(self) -> list[int]:
        """The clients whose models were judged."""
        return [k for k, answer in self.answers.items() if answer.scores is not None]

    def why(self, client: int) -> str:
        """What is known of a client that has no usable answer."""
        answer = self.answers.get(client)
        if answer is None:
            return self.problems.get(client, "no reply")
        return answer.bad or (f"its state is lost: {answer.lost}" if answer.lost else "nothing is wrong")


class RoundExchange:
    """Sends announcements and hears their answers."""

    def __init__(
        self, link: Transport, roll: NodeRegistry, settings: FlowerSettings, event: Event, expected: Mapping[str, Any]
    ) -> None:
        self.link, self.roll, self.settings, self.event = link, roll, settings, event
        self._expected = expected
        self._lifetime = settings.timeout * (settings.retries + 1) + SPARE
        self._hellos = Exchange(link, MessageType.QUERY, "hello", self._lifetime)

    def gather(self, announcement: Announcement, letter: Callable[[int], RecordDict]) -> RoundReplies:
        """Announce, listen, and announce again to the silent where too few answered."""
        found = RoundReplies(announcement)
        exchange = Exchange(self.link, MessageType.TRAIN, str(announcement.round), self._lifetime)
        owners: dict[int, int] = {}
        for attempt in range(self.settings.retries + 1):
            if attempt:
                self.event(announcement.about, "", f"too few replies; announced again ({attempt})")
            self._listen(found, exchange, letter, owners)
            if self._enough(found) or self._all_said(found):
                break
        self._check(found)
        return found

    def _listen(
        self, found: RoundReplies, exchange: Exchange, letter: Callable[[int], RecordDict], owners: dict[int, int]
    ) -> None:
        """Announce to all who have not answered; ``owners`` remembers which client each node was asked for."""
        asked, end = found.announcement, self.link.clock() + self.settings.timeout
        looked = -math.inf
        told: set[int] = set()
        while True:
            if self.link.clock() - looked >= LOOK:
                looked = self.link.clock()
                online = self.link.online()
                self._greet(online, asked.about)
                if asked.last:
                    # who could not answer before may be able to now
                    told -= {node for node, client in owners.items() if client in found.problems}
                nodes = {node: client for client, node in self._reachable(found, online).items() if node not in told}
                told |= set(nodes)
                owners |= nodes
                for heard in exchange.send({node: letter(client) for node, client in nodes.items()}):
                    self._hear(found, owners[heard.node], heard)
            for heard in exchange.receive():
                self._hear(found, owners[heard.node], heard)
            silent = {owners[node] for node in exchange.waiting} - set(found.answers)
            if not silent and (self._all_said(found) or (self._enough(found) and not asked.last)):
                return
            if self.link.clock() >= end:
                return
            self.link.sleep(POLL)

    def _reachable(self, found: RoundReplies, online: Collection[int]) -> dict[int, int]:
        """The clients without an answer whose node is there, and that node."""
        nodes = {client: self.roll.nodes.get(client) for client in found.announcement.everyone}
        return {k: node for k, node in nodes.items() if node is not None and node in online and k not in found.answers}

    def _greet(self, online: Collection[int], round: int) -> None:
        waiting = self._hellos.waiting
        letters = {node: hello for node, hello in self.roll.strangers(online).items() if node not in waiting}
        for heard in [*self._hellos.send(letters), *self._hellos.receive()]:
            try:
                self.roll.hear(heard, online)
            except Claimed as error:
                self.event(round, "", str(error))

    def _hear(self, found: RoundReplies, client: int, heard: NodeReply) -> None:
        asked, name = found.announcement, self.roll.ids[client]
        if client in found.answers:
            return
        if heard.problem is not None:
            found.problems[client] = heard.problem
            self.event(asked.about, name, f"no reply: {heard.problem}")
            return
        round = asked.training if client in asked.selected else None
        expected = Expected(token=asked.token, client=name, round=round, evaluated=asked.evaluate, **self._expected)
        try:
            answer = replies.read(heard.fields, heard.tensors, expected)
        except replies.Stale:
            return
        except FedapmError as error:
            # perhaps another client is behind that node now
            self.roll.forget(client)
            answer = ClientReply(bad=str(error))
        found.answers[client] = answer
        if answer.bad is not None:
            self.event(asked.about, name, answer.bad)

    def _all_said(self, found: RoundReplies) -> bool:
        return set(found.answers) == set(found.announcement.everyone)

    def _enough(self, found: RoundReplies) -> bool:
        if found.announcement.selected:
            return len(found.usable) >= self.settings.minimum
        return bool(found.scored)

    def _check(self, found: RoundReplies) -> None:
        asked = found.announcement
        if self._enough(found):
            return
        answers = [found.answers.get(k) for k in asked.selected]
        if answers and all(answer is not None and answer.diverged for answer in answers):
            return  # the loop says what to do about that
        if asked.selected:
            what, wanted, got, least = f"round {asked.training}", asked.selected, found.usable, self.settings.minimum
        else:
            what, wanted, got, least = f"the evaluation of round {asked.round}", asked.everyone, found.scored, 1
        reasons = "; ".join(f"{self.roll.ids[k]}: {found.why(k)}" for k in [k for k in wanted if k not in got][:5])
        raise FedapmError(
            f"{what}: {len(got)} of {len(wanted)} clients gave a usable answer, at least {least} must ({reasons}); "
            "what was done before is kept, and the same command goes on from there."
        )
