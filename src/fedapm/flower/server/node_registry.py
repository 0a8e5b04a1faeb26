"""Roll: which client is behind which node, by what the nodes say of themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from flwr.app import MessageType, RecordDict

from fedapm.errors import FedapmError
from fedapm.flower.problem import DataSummary
from fedapm.flower.settings import Deployment
from fedapm.flower.transport import codec
from fedapm.flower.transport.transport import POLL, Exchange, NodeReply, Transport

logger = logging.getLogger(__name__)


class Claimed(FedapmError):
    """Two nodes say they are the same client."""

    def __init__(self, client: str, *nodes: int) -> None:
        both = " and ".join(map(str, nodes))
        super().__init__(
            f"the nodes {both} both say they are client {client!r}; give every node an id of its own (client-id)."
        )


class NodeRegistry:
    """The clients that have shown up."""

    def __init__(self, deployment: Deployment, run: str) -> None:
        self.ids = list(deployment.clients)
        self.lifetime = deployment.flower.timeout
        self.nodes: dict[int, int] = {}
        self.outlines: dict[int, DataSummary] = {}
        self._aside: dict[int, int | None] = {}
        """Nodes that are not taken, and the position of the client they claim to be if that is why."""
        tables = deployment.experiment.tables()
        self._hello: RecordDict = codec.records(
            {"protocol": codec.PROTOCOL, "run": run, "hello": self.ids, "settings": tables}
        )

    @property
    def absent(self) -> list[str]:
        """The clients that have never shown up."""
        return [client for k, client in enumerate(self.ids) if k not in self.nodes]

    def strangers(self, online: Collection[int]) -> dict[int, RecordDict]:
        """The question for every node that is not known yet."""
        # who went away may come back as somebody else, and who was second to a node that is gone now may be first
        self._aside = {
            node: claim
            for node, claim in self._aside.items()
            if node in online and (claim is None or self.nodes.get(claim) in online)
        }
        known = {*self.nodes.values(), *self._aside}
        return {node: self._hello for node in online if node not in known}

    def hear(self, heard: NodeReply, online: Collection[int]) -> None:
        """Take a node's answer down; a client that another node is already is refused by name."""
        try:
            client, outline = self._read(heard)
        except FedapmError as error:
            self._aside[heard.node] = None
            logger.warning("node %s does not take part: %s", heard.node, error)
            return
        holder = self.nodes.get(client)
        if holder is not None and holder != heard.node and holder in online:
            self._aside[heard.node] = client
            raise Claimed(self.ids[client], holder, heard.node)
        self.nodes[client] = heard.node
        self.outlines.setdefault(client, outline)

    def forget(self, client: int) -> None:
        """A node turned out to be somebody else: ask it again."""
        self.nodes.pop(client, None)

    def _read(self, heard: NodeReply) -> tuple[int, DataSummary]:
        if heard.problem is not None:
            raise FedapmError(heard.problem)
        if "refused" in heard.fields:
            raise FedapmError(str(heard.fields["refused"]))
        if heard.fields.get("protocol") != codec.PROTOCOL or heard.fields.get("client") not in self.ids:
            raise FedapmError("its answer names no client of this experiment.")
        data = heard.fields.get("data")
        return self.ids.index(heard.fields["client"]), DataSummary.from_json(data if isinstance(data, Mapping) else {})

    def call(self, link: Transport, wait: float, enough: Callable[[NodeRegistry], bool]) -> None:
        """Ask all nodes who they are until enough clients are there or the time is over."""
        end = link.clock() + wait
        exchange = Exchange(link, MessageType.QUERY, "hello", max(wait, self.lifetime))
        said: list[str] = []
        while True:
            online = link.online()
            letters = {n: c for n, c in self.strangers(online).items() if n not in exchange.waiting}
            for heard in [*exchange.send(letters), *exchange.receive()]:
                self.hear(heard, online)
            if enough(self) or link.clock() >= end:
                return
            if self.absent != said:
                said = self.absent
                logger.info("waiting for client%s %s", "s" * (len(said) > 1), _few(said))
            link.sleep(POLL)


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
