"""A node's side of masks: its own key, whose keys it believes, and what it has masked already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.client.node import Node
from fedapm.flower.client.request import MaskRequest
from fedapm.flower.transport.codec import digest
from fedapm.flower.transport.keys import NONE, read_keys
from fedapm.flower.transport.mask_keys import SignedKey, signed
from fedapm.runs.files import read_json, write_json
from fedapm.simulation.stores.rows import sync_folder
from fedapm.uploads.masks.groups import Answer, Guard
from fedapm.uploads.masks.keys import MaskKey
from fedapm.uploads.masks.streams import Group

KEY, PEERS, GUARD, KNOWN = "mask-key.json", "mask-peers.json", "masked.json", "known-keys"
"""Files in a client's folder of one run: its key, the others' keys, what it has masked; and a folder beside the runs
with the node keys that were seen first."""


class NodeMasks:
    """Masks a client's messages in one run. The caller has the lock of the client's folder.

    Args:
        node: The client's node.
        folder: The client's folder of this run.
        run: The run's id.
        client: The client's id.
    """

    def __init__(self, node: Node, folder: Path, run: str, client: str) -> None:
        self.node, self.folder, self.run, self.client = node, folder, run, client

    def own(self) -> SignedKey:
        """The client's public key in this run, signed by its node where that has a key."""
        return signed(self._key().public, self.run, self.client, self.node.node_key)

    def masked(self, round: int, request: MaskRequest, wire: Vec, threshold: int | None = None) -> Vec:
        """A message as it is sent.

        Args:
            round: The round.
            request: For whom it is masked.
            wire: The message.
            threshold: t; where it is not given, that of the messages before.

        Raises:
            FedapmError: If a key of the group is not believed, or the message must not be masked for this group.
        """
        key = self._key()
        peers = self._peers(request)
        missing = [client for client in request.clients if client not in peers]
        if missing:
            raise FedapmError(f"it does not have the mask key of client {missing[0]}.")
        if peers.get(self.client) != key.public:
            raise FedapmError("the server gives it another mask key than its own.")
        group = Group(self.run, round, request.nonce, {client: peers[client] for client in request.clients})
        hidden = group.masked(wire, self.client, key)
        self._remember(round, Answer(frozenset(request.clients), request.nonce, digest(wire)), threshold)
        return hidden

    def _key(self) -> MaskKey:
        path = self.folder / KEY
        if path.is_file():
            return MaskKey(bytes.fromhex(str(read_json(path).get("key", ""))))
        key = MaskKey()
        write_json(path, {"key": key.private.hex()})
        path.chmod(0o600)
        sync_folder(self.folder)
        return key

    def _peers(self, request: MaskRequest) -> dict[str, bytes]:
        """The public keys that are believed; what is new among them is written down."""
        path = self.folder / PEERS
        before = {str(c): bytes.fromhex(str(k)) for c, k in (read_json(path) if path.is_file() else {}).items()}
        new = {client: given for client, given in request.keys.items() if before.get(client) != given.key}
        if not new:
            return before
        self._check(new, before)
        peers = before | {client: given.key for client, given in new.items()}
        write_json(path, {client: key.hex() for client, key in peers.items()})
        return peers

    def _check(self, new: Mapping[str, SignedKey], before: Mapping[str, bytes]) -> None:
        """Refuse keys that are not vouched for as they should be."""
        registered = read_keys(self.node.registry) if self.node.registry is not None else None
        path = self.node.state / KNOWN / f"client-{quote(self.client, safe='')}.json"
        seen = {str(c): str(k) for c, k in (read_json(path) if path.is_file() else {}).items()}
        for client, given in new.items():
            signer = given.signer(self.run, client)
            if registered is not None and (signer == NONE or registered.get(client) != signer):
                raise FedapmError(
                    f"the mask key of client {client} is signed by {signer or 'nobody'}, not by the key that "
                    f"{self.node.registry} names; the server may have swapped it."
                )
            if registered is None and seen.setdefault(client, signer) != signer:
                raise FedapmError(
                    f"the mask key of client {client} is signed by {signer or 'nobody'}, before it was by "
                    f"{seen[client] or 'nobody'}; the server may have swapped it. If that node has a new key, remove "
                    f"{path}."
                )
            if client in before and signer == NONE:
                raise FedapmError(f"the mask key of client {client} has changed, and nobody signed the new one.")
        if registered is None:
            write_json(path, seen)

    def _remember(self, round: int, answer: Answer, threshold: int | None) -> None:
        path = self.folder / GUARD
        kept = read_json(path) if path.is_file() else {}
        fewest = max(int(kept.get("threshold", 0)), threshold or 0, self.node.mask_threshold or 0)
        guard = Guard.read(kept.get("rounds", {})).admit(round, answer, fewest)
        write_json(path, {"threshold": fewest, "rounds": guard.note()})
        sync_folder(self.folder)
