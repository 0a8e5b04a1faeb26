"""Send messages to nodes and receive their replies, over Flower's grid.

Flower's own ``send_and_receive`` polls for replies every three seconds; this polls twice a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedapm.errors import FedapmError
from fedapm.flower.text import one_line
from fedapm.flower.transport import codec
from fedapm.flower.transport.keys import fingerprint
from fedapm.flower.transport.traffic import Traffic

POLL = 0.5
"""Seconds between two polls for replies."""
SLOW = 60.0
"""Seconds after which a message that was not replied to no longer keeps others from being sent."""


@dataclass(frozen=True)
class NodeReply:
    """A node's reply, or why there is none."""

    node: int
    fields: codec.Fields = field(default_factory=dict)
    tensors: codec.Tensors = field(default_factory=dict)
    problem: str | None = None
    """Why no reply came."""
    refused: str | None = None
    """Why a reply that came could not be decoded."""


class Transport:
    """The grid, a clock, and a count of the traffic."""

    def __init__(
        self,
        grid: Grid,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.clock, self.sleep = grid, clock, sleep
        self.traffic = Traffic()
        self.at_once: int | None = None
        """How many messages of an exchange are under way at a time; None for all of them."""

    def online(self) -> dict[int, str]:
        """The ids of the nodes that are connected now, each with the fingerprint of its key."""
        return {node.node_id: fingerprint(node.public_key) for node in self.grid.get_nodes()}


class Exchange:
    """Messages of one kind, and the replies to them and to no others.

    Args:
        transport: How messages travel.
        kind: Flower's message type.
        group: Flower's group id.
        lifetime: Seconds until the SuperLink drops a message.
        limit: The most bytes of tensors in a reply; a larger one is refused before it is decoded.
    """

    def __init__(self, transport: Transport, kind: str, group: str, lifetime: float, limit: int) -> None:
        self.transport, self.kind, self.group, self.lifetime, self.limit = transport, kind, group, lifetime, limit
        self._pending: dict[str, int] = {}
        self._sent: dict[str, float] = {}
        self._queue: dict[int, RecordDict] = {}

    @property
    def waiting(self) -> set[int]:
        """The nodes that have a message, or will be sent one, and have not replied yet."""
        return {*self._pending.values(), *self._queue}

    def send(self, contents: Mapping[int, RecordDict]) -> list[NodeReply]:
        """Send each node its message, some of them later where only so many may be under way at a time.

        Args:
            contents: The message of each node.

        Returns:
            A reply with a problem for each that could not be sent.
        """
        self._queue |= contents
        return self._send_next()

    def _send_next(self) -> list[NodeReply]:
        """Send as many of the messages that wait as may be under way."""
        contents = {node: self._queue.pop(node) for node in list(self._queue)[: self._room()]}
        messages = [
            Message(content, node, self.kind, ttl=self.lifetime, group_id=self.group)
            for node, content in contents.items()
        ]
        ids = list(self.transport.grid.push_messages(messages)) if messages else []
        ids += [""] * (len(messages) - len(ids))
        failed = []
        for (node, content), id in zip(contents.items(), ids, strict=True):
            if id:
                self._pending[id], self._sent[id] = node, self.transport.clock()
                self.transport.traffic.count_sent(content)
            else:
                failed.append(NodeReply(node, problem="the SuperLink did not accept the message"))
        return failed

    def _room(self) -> int:
        """How many messages may be sent now."""
        if self.transport.at_once is None:
            return len(self._queue)
        since = self.transport.clock() - SLOW
        return max(self.transport.at_once - sum(self._sent[id] > since for id in self._pending), 0)

    def receive(self) -> list[NodeReply]:
        """The replies that have arrived since the last call; messages that waited for them are sent."""
        replies = []
        for message in self.transport.grid.pull_messages(set(self._pending)) if self._pending else ():
            # the SuperLink's own error replies do not name the node, so the message they answer does
            node = self._pending.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                replies.append(_reply(node, message, self.limit))
                if message.has_content():
                    self.transport.traffic.count_received(message.content)
        return [*replies, *self._send_next()]


def _reply(node: int, message: Message, limit: int) -> NodeReply:
    if message.has_error():
        lines = (message.error.reason or "").strip().splitlines()
        return NodeReply(node, problem=one_line(lines[-1]) if lines else f"error {message.error.code}")
    try:
        return NodeReply(node, *codec.decode(message.content, limit))
    except FedapmError as error:
        return NodeReply(node, refused=str(error))
