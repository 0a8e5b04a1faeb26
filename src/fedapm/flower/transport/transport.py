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

    @property
    def waiting(self) -> set[int]:
        """The nodes that were sent a message and have not replied yet."""
        return set(self._pending.values())

    def send(self, contents: Mapping[int, RecordDict]) -> list[NodeReply]:
        """Send each node its message; returns a reply with a problem for each that could not be sent."""
        messages = [
            Message(content, node, self.kind, ttl=self.lifetime, group_id=self.group)
            for node, content in contents.items()
        ]
        ids = list(self.transport.grid.push_messages(messages)) if messages else []
        ids += [""] * (len(messages) - len(ids))
        failed = []
        for (node, content), id in zip(contents.items(), ids, strict=True):
            if id:
                self._pending[id] = node
                self.transport.traffic.count_sent(content)
            else:
                failed.append(NodeReply(node, problem="the SuperLink did not accept the message"))
        return failed

    def receive(self) -> list[NodeReply]:
        """The replies that have arrived since the last call."""
        if not self._pending:
            return []
        replies = []
        for message in self.transport.grid.pull_messages(set(self._pending)):
            # the SuperLink's own error replies do not name the node, so the message they answer does
            node = self._pending.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                replies.append(_reply(node, message, self.limit))
                if message.has_content():
                    self.transport.traffic.count_received(message.content)
        return replies


def _reply(node: int, message: Message, limit: int) -> NodeReply:
    if message.has_error():
        lines = (message.error.reason or "").strip().splitlines()
        return NodeReply(node, problem=one_line(lines[-1]) if lines else f"error {message.error.code}")
    try:
        return NodeReply(node, *codec.decode(message.content, limit))
    except FedapmError as error:
        return NodeReply(node, refused=str(error))
