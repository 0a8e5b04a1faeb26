"""Flower without a network: a grid that runs the ClientApp at once, and can lose, repeat and spoil what it carries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedapm.flower.transport import codec
from fedapm.flower.transport.transport import Transport

ErrorCode = 3


@dataclass
class Carried:
    """A message and its reply, as they pass."""

    node: int
    client: str
    asked: codec.Fields
    message: Message
    reply: Message

    @property
    def trains(self) -> int | None:
        """The round this message trains, if it does."""
        return self.asked.get("train")

    def answered(self) -> tuple[codec.Fields, codec.Tensors]:
        return codec.decode(self.reply.content)

    def replaced(self, note: codec.Fields, tensors: codec.Tensors) -> Message:
        """The reply with another content."""
        self.reply.content = codec.records(note, codec.block(tensors))
        return self.reply


Fate = Callable[[Carried], Sequence[Message] | None]
"""What is delivered instead of a reply; None delivers it as it is."""


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class InProcessGrid(Grid):
    """Nodes that are always there, unless they are taken away."""

    app: ClientApp
    state: Path
    clients: dict[int, dict[str, object]]
    """The configuration of every node, by its number."""
    fate: Fate | None = None
    carried: list[Carried] = field(default_factory=list)
    away: set[int] = field(default_factory=set)
    keys: dict[int, bytes] = field(default_factory=dict)
    """The public keys of the nodes that have one."""
    keep: int | None = None
    """How many of the last messages are remembered; all of them if not given."""
    _replies: list[Message] = field(default_factory=list)
    _numbers: Iterable[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.clients if node not in self.away]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            id = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = id
            ids.append(id)
            self._run(message)
        return ids

    def _run(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        config = {"state-dir": str(self.state / str(node)), **self.clients[node]}
        context = Context(1, node, config, RecordDict(), {})
        asked, _ = codec.decode(message.content)
        with torch.random.fork_rng():
            # whatever a node's process drew before must not matter
            torch.default_generator.manual_seed(node)
            reply = deepcopy(self.app(deepcopy(message), context))
        carried = Carried(node, str(asked.get("client", "")), asked, message, reply)
        self.carried.append(carried)
        if self.keep is not None:
            del self.carried[: -self.keep]
        instead = self.fate(carried) if self.fate is not None else None
        self._replies += [reply] if instead is None else instead

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        # a reply that nobody waits for is delivered all the same: it is the receiver who must not take it
        found, self._replies = self._replies, []
        return found

    def link(self) -> Transport:
        clock = Clock()
        return Transport(self, clock, clock.sleep)


def lost(carried: Carried) -> Message:
    """What the SuperLink says in place of a reply that will not come."""
    return Message(Error(ErrorCode, "the node is gone"), reply_to=carried.message)
