"""Link: messages out to nodes and their replies in, over Flower's grid.

Flower's own exchange looks for replies every three seconds; this one looks twice a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedapm.errors import FedapmError
from fedapm.flower.transport import codec
from fedapm.flower.transport.traffic import Traffic

POLL = 0.5
"""Seconds between two looks for replies."""


@dataclass(frozen=True)
class NodeReply:
    """A node's reply, or why there is none."""

    node: int
    note: codec.Note = field(default_factory=dict)
    tensors: codec.Tensors = field(default_factory=dict)
    problem: str | None = None


class Transport:
    """The grid and a clock."""

    def __init__(
        self,
        grid: Grid,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.clock, self.sleep = grid, clock, sleep
        self.traffic = Traffic()

    def online(self) -> set[int]:
        """The nodes that are there now."""
        return set(self.grid.get_node_ids())


class Exchange:
    """One announcement: whatever is sent in it, however often, its replies are heard here and nowhere else."""

    def __init__(self, link: Transport, kind: str, group: str, lifetime: float) -> None:
        self.link, self.kind, self.group, self.lifetime = link, kind, group, lifetime
        self._open: dict[str, int] = {}

    @property
    def waiting(self) -> set[int]:
        """The nodes that have a message and have not replied to it."""
        return set(self._open.values())

    def send(self, letters: Mapping[int, RecordDict]) -> list[NodeReply]:
        """Send each node its message; what cannot be sent is told at once."""
        messages = [
            Message(content, node, self.kind, ttl=self.lifetime, group_id=self.group)
            for node, content in letters.items()
        ]
        ids = list(self.link.grid.push_messages(messages)) if messages else []
        ids += [""] * (len(messages) - len(ids))
        failed = []
        for (node, content), id in zip(letters.items(), ids, strict=True):
            if id:
                self._open[id] = node
                self.link.traffic.out(content)
            else:
                failed.append(NodeReply(node, problem="the SuperLink did not take the message"))
        return failed

    def listen(self) -> list[NodeReply]:
        """The replies that have come since."""
        if not self._open:
            return []
        heard = []
        for message in self.link.grid.pull_messages(set(self._open)):
            # an error that the SuperLink made up says nothing of the node, so the question tells whose it is
            node = self._open.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                heard.append(_heard(node, message))
                if message.has_content():
                    self.link.traffic.back(message.content)
        return heard


def _heard(node: int, message: Message) -> NodeReply:
    if message.has_error():
        reason = (message.error.reason or "").strip()
        return NodeReply(node, problem=reason.splitlines()[-1] if reason else f"error {message.error.code}")
    try:
        return NodeReply(node, *codec.decode(message.content))
    except FedapmError as error:
        return NodeReply(node, problem=str(error))
