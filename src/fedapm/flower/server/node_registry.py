"""Which client each node belongs to, as the nodes report it."""

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
    """Two nodes claim to be the same client."""

    def __init__(self, client: str, *nodes: int) -> None:
        both = " and ".join(map(str, nodes))
        super().__init__(
            f"the nodes {both} both say they are client {client!r}; give every node an id of its own (client-id)."
        )


class NodeRegistry:
    """The clients that have reported, and their nodes."""

    def __init__(self, deployment: Deployment, run: str) -> None:
        self.ids = list(deployment.clients)
        self.lifetime = deployment.flower.timeout
        self.nodes: dict[int, int] = {}
        self.data_summaries: dict[int, DataSummary] = {}
        self._rejected: dict[int, int | None] = {}
        """Rejected nodes, with the position of the client they claimed if it was taken."""
        tables = deployment.experiment.tables()
        self._hello: RecordDict = codec.records(
            {"protocol": codec.PROTOCOL, "run": run, "hello": self.ids, "settings": tables}
        )

    @property
    def absent(self) -> list[str]:
        """The clients that have not reported yet."""
        return [client for k, client in enumerate(self.ids) if k not in self.nodes]

    def unknown_nodes(self, online: Collection[int]) -> dict[int, RecordDict]:
        """A hello message for every online node that has not reported."""
        # a node that left may return as another client, and a claim rejected earlier may be free now
        self._rejected = {
            node: claim
            for node, claim in self._rejected.items()
            if node in online and (claim is None or self.nodes.get(claim) in online)
        }
        known = {*self.nodes.values(), *self._rejected}
        return {node: self._hello for node in online if node not in known}

    def register(self, reply: NodeReply, online: Collection[int]) -> None:
        """Record a node's reply; refuse a client that another online node already is."""
        try:
            client, data_summary = self._read(reply)
        except FedapmError as error:
            self._rejected[reply.node] = None
            logger.warning("node %s does not take part: %s", reply.node, error)
            return
        holder = self.nodes.get(client)
        if holder is not None and holder != reply.node and holder in online:
            self._rejected[reply.node] = client
            raise Claimed(self.ids[client], holder, reply.node)
        self.nodes[client] = reply.node
        self.data_summaries.setdefault(client, data_summary)

    def forget(self, client: int) -> None:
        """Forget a client's node, so that it is asked again."""
        self.nodes.pop(client, None)

    def _read(self, reply: NodeReply) -> tuple[int, DataSummary]:
        if reply.problem is not None:
            raise FedapmError(reply.problem)
        if "refused" in reply.fields:
            raise FedapmError(str(reply.fields["refused"]))
        if reply.fields.get("protocol") != codec.PROTOCOL or reply.fields.get("client") not in self.ids:
            raise FedapmError("its answer names no client of this experiment.")
        data = reply.fields.get("data")
        return self.ids.index(reply.fields["client"]), DataSummary.from_json(data if isinstance(data, Mapping) else {})

    def call(self, transport: Transport, wait: float, enough: Callable[[NodeRegistry], bool]) -> None:
        """Ask all nodes which client they are, until enough have reported or the time is up."""
        end = transport.clock() + wait
        exchange = Exchange(transport, MessageType.QUERY, "hello", max(wait, self.lifetime))
        announced: list[str] = []
        while True:
            online = transport.online()
            messages = {n: c for n, c in self.unknown_nodes(online).items() if n not in exchange.waiting}
            for reply in [*exchange.send(messages), *exchange.receive()]:
                self.register(reply, online)
            if enough(self) or transport.clock() >= end:
                return
            if self.absent != announced:
                announced = self.absent
                logger.info("waiting for client%s %s", "s" * (len(announced) > 1), _few(announced))
            transport.sleep(POLL)


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
