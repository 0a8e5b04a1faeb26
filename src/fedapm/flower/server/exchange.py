"""One exchange with the nodes: a message to each client, and the replies a round needs."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flwr.app import MessageType, RecordDict

from fedapm.core.algorithm import Upload
from fedapm.errors import FedapmError
from fedapm.flower.server import replies
from fedapm.flower.server.node_registry import Bound, Claimed, NodeRegistry
from fedapm.flower.server.replies import ClientReply, Expected
from fedapm.flower.settings import FlowerSettings
from fedapm.flower.text import MARK, few, one_line
from fedapm.flower.transport.transport import POLL, Exchange, NodeReply, Transport

LOOK = 5.0
"""Seconds between two checks for nodes that came back."""
NOTICE = 20.0
"""Seconds after which, again and again, it is logged who has not replied."""
SPARE = 60.0
"""Seconds a message outlives the time the server waits for it."""

logger = logging.getLogger(__name__)

Event = Callable[[int, str, str], None]
"""Called with a round, a client's id and what happened, for the log that an operator reads."""
Vet = Callable[[Mapping[int, Upload]], Mapping[int, ClientReply]]
"""Called with all updates of a round; gives the reply that stands in for each that must not be used."""


@dataclass(frozen=True)
class Announcement:
    """One request to the clients: evaluate the state after a round, train from it, or both."""

    round: int
    """The round whose result is broadcast."""
    evaluate: bool
    selected: Sequence[int]
    """The clients that train in the next round."""
    everyone: Sequence[int]
    """The clients that get a message."""
    last: bool = False
    """Whether this is the last exchange, which waits for every client."""
    enough: Callable[[RoundReplies], bool] | None = None
    """Whether its replies are of use, where that takes more than a number of them."""
    token: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def training(self) -> int | None:
        """The round that is trained; None if nobody trains."""
        return self.round + 1 if self.selected else None

    @property
    def about(self) -> int:
        """The round that events during this exchange are logged under."""
        return self.round if self.training is None else self.training


@dataclass
class RoundReplies:
    """The replies to an announcement."""

    announcement: Announcement
    expected_of: Callable[[int], Expected]
    answers: dict[int, ClientReply] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    """Why a client has not replied, where that is known."""

    @property
    def usable(self) -> list[int]:
        """The selected clients whose updates can be used, in order."""
        asked = self.announcement.selected
        return [k for k in asked if k in self.answers and self.answers[k].trained is not None]

    @property
    def scored(self) -> list[int]:
        """The clients whose models were evaluated."""
        return [k for k, answer in self.answers.items() if answer.scores is not None]

    def why(self, client: int) -> str:
        """Why a client has no usable reply."""
        answer = self.answers.get(client)
        if answer is None:
            return self.problems.get(client, "no reply")
        return answer.bad or (f"its state is lost: {answer.lost}" if answer.lost else "nothing is wrong")


class RoundExchange:
    """Sends announcements and collects the replies."""

    def __init__(
        self,
        transport: Transport,
        registry: NodeRegistry,
        settings: FlowerSettings,
        event: Event,
        limit: int,
    ) -> None:
        self.transport, self.registry, self.settings, self.event = transport, registry, settings, event
        self._limit = limit
        self.lifetime = settings.timeout * (settings.retries + 1) + SPARE
        self._hellos = Exchange(transport, MessageType.QUERY, "hello", self.lifetime, limit=0)

    def gather(
        self,
        announcement: Announcement,
        message_for: Callable[[int], RecordDict],
        expected_of: Callable[[int], Expected],
        vet: Vet,
    ) -> RoundReplies:
        """Send an announcement and collect replies; repeat it to silent clients if there are too few.

        Args:
            announcement: What is asked, and of whom.
            message_for: Makes a client's message.
            expected_of: What a client's reply must look like.
            vet: Looks at the updates of all clients together.
        """
        collected = RoundReplies(announcement, expected_of)
        exchange = Exchange(self.transport, MessageType.TRAIN, str(announcement.round), self.lifetime, self._limit)
        owners: dict[int, int] = {}
        for attempt in range(self.settings.retries + 1):
            if attempt:
                self.event(announcement.about, "", f"too few replies; announced again ({attempt})")
            self._listen(collected, exchange, message_for, owners)
            if self._enough(collected) or self._all_replied(collected):
                break
        self._vet(collected, vet)
        self._check(collected)
        return collected

    def ask(self, round: int, contents: Mapping[int, RecordDict]) -> dict[int, NodeReply]:
        """Send some clients a further message and wait for their replies, as long as for those of a round.

        Args:
            round: What the messages are about.
            contents: The message of each client.

        Returns:
            The first reply of each that replied.
        """
        exchange = Exchange(self.transport, MessageType.TRAIN, str(round), self.lifetime, self._limit)
        owners = {self.registry.nodes[k]: k for k in contents if k in self.registry.nodes}
        found: dict[int, NodeReply] = {}
        arrived = exchange.send({node: contents[client] for node, client in owners.items()})
        end = self.transport.clock() + self.settings.timeout
        while True:
            for reply in [*arrived, *exchange.receive()]:
                found.setdefault(owners[reply.node], reply)
            if not exchange.waiting or self.transport.clock() >= end:
                return found
            arrived = []
            self.transport.sleep(POLL)

    def _listen(
        self,
        collected: RoundReplies,
        exchange: Exchange,
        message_for: Callable[[int], RecordDict],
        owners: dict[int, int],
    ) -> None:
        """Send to all clients that have not replied; ``owners`` records which client each node was asked for."""
        asked, end = collected.announcement, self.transport.clock() + self.settings.timeout
        looked, told = -math.inf, self.transport.clock()
        messaged: set[int] = set()
        while True:
            if self.transport.clock() - looked >= LOOK:
                looked = self.transport.clock()
                online = self.transport.online()
                self._greet(online, asked.about)
                if asked.last:
                    # clients that failed to reply before may succeed now
                    messaged -= {node for node, client in owners.items() if client in collected.problems}
                nodes = {
                    node: client for client, node in self._reachable(collected, online).items() if node not in messaged
                }
                messaged |= set(nodes)
                owners |= nodes
                for reply in exchange.send({node: message_for(client) for node, client in nodes.items()}):
                    self._receive(collected, owners[reply.node], reply)
            for reply in exchange.receive():
                self._receive(collected, owners[reply.node], reply)
            silent = {owners[node] for node in exchange.waiting} - set(collected.answers)
            if not silent and (self._all_replied(collected) or (self._enough(collected) and not asked.last)):
                return
            if self.transport.clock() - told >= NOTICE:
                told = self.transport.clock()
                missing = [self.registry.ids[k] for k in asked.everyone if k not in collected.answers]
                logger.info("round %d: %s%s", asked.about, MARK, few(missing))
            if self.transport.clock() >= end:
                for client in sorted(silent):
                    collected.problems[client] = f"no reply within {self.settings.timeout:g} s (flower.timeout)"
                    self.event(asked.about, self.registry.ids[client], collected.problems[client])
                return
            self.transport.sleep(POLL)

    def _reachable(self, collected: RoundReplies, online: Mapping[int, str]) -> dict[int, int]:
        """The clients that have not replied but are online, with their nodes."""
        nodes = {client: self.registry.nodes.get(client) for client in collected.announcement.everyone}
        return {
            k: node for k, node in nodes.items() if node is not None and node in online and k not in collected.answers
        }

    def _greet(self, online: Mapping[int, str], round: int) -> None:
        waiting = self._hellos.waiting
        messages = {node: hello for node, hello in self.registry.unknown_nodes(online).items() if node not in waiting}
        for reply in [*self._hellos.send(messages), *self._hellos.receive()]:
            try:
                self.registry.register(reply, online)
            except (Bound, Claimed) as error:
                self.event(round, "", str(error))

    def _receive(self, collected: RoundReplies, client: int, reply: NodeReply) -> None:
        asked, name = collected.announcement, self.registry.ids[client]
        if client in collected.answers:
            return
        if reply.problem is not None:
            collected.problems[client] = reply.problem
            self.event(asked.about, name, f"no reply: {reply.problem}")
            return
        try:
            if reply.refused is not None:
                raise FedapmError(reply.refused)
            answer = replies.read(reply.fields, reply.tensors, collected.expected_of(client))
        except replies.Stale as error:
            collected.problems[client] = str(error)
            self.event(asked.about, name, str(error))
            return
        except FedapmError as error:
            # the node may belong to another client now
            self.registry.forget(client)
            answer = ClientReply(bad=one_line(str(error)))
        collected.answers[client] = answer
        if answer.bad is not None:
            self.event(asked.about, name, answer.bad)

    def _vet(self, collected: RoundReplies, vet: Vet) -> None:
        asked, answers = collected.announcement, collected.answers
        updates = {k: reply.upload for k in collected.usable if (reply := answers[k].trained) is not None}
        for client, verdict in vet(updates).items():
            answers[client] = replace(answers[client], trained=None, bad=verdict.bad, diverged=verdict.diverged)
            self.event(asked.about, self.registry.ids[client], verdict.bad or "")

    def _all_replied(self, collected: RoundReplies) -> bool:
        return set(collected.answers) == set(collected.announcement.everyone)

    def _enough(self, collected: RoundReplies) -> bool:
        if collected.announcement.selected:
            suffices = collected.announcement.enough
            return len(collected.usable) >= self.settings.minimum and (suffices is None or suffices(collected))
        return bool(collected.scored)

    def _check(self, collected: RoundReplies) -> None:
        asked = collected.announcement
        if self._enough(collected):
            return
        answers = [collected.answers.get(k) for k in asked.selected]
        if answers and all(answer is not None and answer.diverged for answer in answers):
            return  # the loop says what to do about that
        if answers and all(answer is not None and answer.exhausted for answer in answers):
            return  # nobody is left who could answer
        if asked.enough is not None and collected.answers:
            return  # the round is abandoned, and the next one begins
        if asked.selected:
            what, wanted, got, least = (
                f"round {asked.training}",
                asked.selected,
                collected.usable,
                self.settings.minimum,
            )
        else:
            what, wanted, got, least = f"the evaluation of round {asked.round}", asked.everyone, collected.scored, 1
        reasons = "; ".join(
            f"{self.registry.ids[k]}: {collected.why(k)}" for k in [k for k in wanted if k not in got][:5]
        )
        raise FedapmError(
            f"{what}: {len(got)} of {len(wanted)} clients gave a usable answer, at least {least} must ({reasons}); "
            "what was done before is kept, and the same command goes on from there."
        )
