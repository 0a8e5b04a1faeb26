"""Which client each node belongs to, as the nodes report it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import MessageType, RecordDict

from fedapm.errors import FedapmError
from fedapm.flower.fields import table, text
from fedapm.flower.problem import DataSummary
from fedapm.flower.settings import Deployment
from fedapm.flower.text import MARK, few, one_line
from fedapm.flower.transport import codec
from fedapm.flower.transport.keys import NONE
from fedapm.flower.transport.mask_keys import SignedKey
from fedapm.flower.transport.transport import POLL, Exchange, NodeReply, Transport

logger = logging.getLogger(__name__)


class Claimed(FedapmError):
    """Two nodes claim to be the same client."""

    def __init__(self, client: str, *nodes: int) -> None:
        both = " and ".join(map(str, nodes))
        super().__init__(
            f"the nodes {both} both say they are client {client!r}; give every node an id of its own (client-id)."
        )


class Bound(FedapmError):
    """A node's key is not that of the client it says it is."""


class NodeRegistry:
    """The clients that have reported, and their nodes.

    Args:
        deployment: Who the clients are.
        run: The run's id.
        keys: The fingerprint of each client's key, as far as it is known; those of others are added at first sight.
    """

    def __init__(self, deployment: Deployment, run: str, keys: dict[str, str] | None = None) -> None:
        self.keys: dict[str, str] = keys if keys is not None else {}
        self.bind, self.run = deployment.flower.bind_keys, run
        self.ids = list(deployment.clients)
        self.lifetime, self.most = deployment.flower.timeout, deployment.flower.max_samples
        self.nodes: dict[int, int] = {}
        self.data_summaries: dict[int, DataSummary] = {}
        self.masked = bool(deployment.experiment.upload.mask)
        self.mask_keys: dict[int, SignedKey] = {}
        """The public mask keys of the clients that have reported, where messages are masked."""
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

    def unknown_nodes(self, online: Mapping[int, str]) -> dict[int, RecordDict]:
        """A hello message for every online node that has not reported."""
        # a node that left may return as another client, and a claim rejected earlier may be free now
        self._rejected = {
            node: claim
            for node, claim in self._rejected.items()
            if node in online and (claim is None or self.nodes.get(claim) in online)
        }
        known = {*self.nodes.values(), *self._rejected}
        return {node: self._hello for node in online if node not in known}

    def register(self, reply: NodeReply, online: Mapping[int, str]) -> None:
        """Record a node's reply.

        Args:
            reply: What the node says.
            online: The nodes that are connected now, with the fingerprints of their keys.

        Raises:
            Bound: If its key is not that of the client it says it is.
            Claimed: If another online node is that client already.
        """
        try:
            client, data_summary, mask_key = self._read(reply, online.get(reply.node, NONE))
        except FedapmError as error:
            self._rejected[reply.node] = None
            logger.warning("node %s does not take part: %s", reply.node, error)
            return
        if why := self._forged(self.ids[client], online.get(reply.node, NONE)):
            self._rejected[reply.node] = None
            raise Bound(f"node {reply.node} says it is client {self.ids[client]!r}, but {why}")
        holder = self.nodes.get(client)
        if holder is not None and holder != reply.node and holder in online:
            self._rejected[reply.node] = client
            raise Claimed(self.ids[client], holder, reply.node)
        if self.bind and (key := online.get(reply.node, NONE)) != NONE:
            self.keys.setdefault(self.ids[client], key)
        self.nodes[client] = reply.node
        self.data_summaries.setdefault(client, data_summary)
        if mask_key is not None:
            self.mask_keys[client] = mask_key

    def _forged(self, client: str, key: str) -> str | None:
        """Why a node with this key is not the client it says it is; None where it may be."""
        if not self.bind:
            return None
        if client in self.keys and key != self.keys[client]:
            return (
                f"that client has the key {self.keys[client]} and this node {key or 'none'}; name the new key in "
                "flower.registry if it has changed."
            )
        others = [other for other, its in self.keys.items() if its == key and other != client]
        return f"its key is that of client {others[0]!r}." if key != NONE and others else None

    def forget(self, client: int) -> None:
        """Forget a client's node, so that it is asked again."""
        self.nodes.pop(client, None)

    def _read(self, reply: NodeReply, key: str) -> tuple[int, DataSummary, SignedKey | None]:
        if reply.problem is not None or reply.refused is not None:
            raise FedapmError(reply.problem or reply.refused or "")
        fields = table(reply.fields, "its answer", ("protocol", "run", "token", "client", "data", "mask", "refused"))
        if "refused" in fields:
            raise FedapmError(one_line(text(fields["refused"], "its refusal", codec.NOTE_LIMIT)))
        if fields.get("run") != self.run or fields.get("token") is not None:
            raise FedapmError("its answer is to another question.")
        if fields.get("protocol") != codec.PROTOCOL or fields.get("client") not in self.ids:
            raise FedapmError("its answer names no client of this experiment.")
        client = str(fields["client"])
        mask_key = self._mask_key(fields.get("mask"), client, key) if self.masked else None
        return self.ids.index(client), DataSummary.from_json(fields.get("data"), self.most), mask_key

    def _mask_key(self, value: Any, client: str, key: str) -> SignedKey:
        """A client's mask key; where it is signed, by the node it comes from."""
        mask_key = SignedKey.read(value, client)
        signer = mask_key.signer(self.run, client)
        if NONE not in (key, signer) and signer != key:
            raise FedapmError(
                f"its mask key is signed by {signer}, but its node has the key {key}; name the private key that its "
                "SuperNode was started with (--node-config node-key)."
            )
        return mask_key

    def call(self, transport: Transport, wait: float, enough: Callable[[NodeRegistry], bool]) -> None:
        """Ask all nodes which client they are, until enough have reported or the time is up."""
        end = transport.clock() + wait
        exchange = Exchange(transport, MessageType.QUERY, "hello", max(wait, self.lifetime), limit=0)
        announced: list[str] = []
        while True:
            online = transport.online()
            messages = {n: c for n, c in self.unknown_nodes(online).items() if n not in exchange.waiting}
            for reply in [*exchange.send(messages), *exchange.receive()]:
                try:
                    self.register(reply, online)
                except Bound as error:
                    logger.warning("%s", error)
            if enough(self) or transport.clock() >= end:
                return
            if self.absent != announced:
                announced = self.absent
                logger.info("%s%s", MARK, few(announced))
            transport.sleep(POLL)
