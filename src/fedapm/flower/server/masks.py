"""The server's side of masks: who masks for whom, and the sum, which is all that it learns.

One message a client and round, as without masks, where everybody replies. Where somebody does not, a part of the others
is asked once more; where there is no part that may be asked, or not all of it replies, the round is abandoned. See
:mod:`fedapm.uploads.masks.groups` for who may be asked, and why.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedapm.core.algorithm import NUMBERS, Aggregate, Upload
from fedapm.core.random import numpy_generator
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.problem import UploadForm
from fedapm.flower.server import replies
from fedapm.flower.server.exchange import RoundExchange, RoundReplies
from fedapm.flower.server.replies import TrainReply
from fedapm.flower.text import few, one_line
from fedapm.flower.transport import codec
from fedapm.flower.transport.mask_keys import SignedKey
from fedapm.flower.transport.transport import NodeReply
from fedapm.uploads import Masked
from fedapm.uploads.masks.groups import part_of
from fedapm.uploads.masks.streams import Group, added

REASONS = 3
"""Of how many clients it is said why they did not answer."""


class Abandoned(FedapmError):
    """A round of which no sum can be learnt."""


@dataclass(frozen=True)
class MaskedSum:
    """What the server learns of a round."""

    total: Aggregate
    clients: Mapping[int, TrainReply]
    """Those in the sum, in order, with what they said of their work."""
    bytes_up: int

    def mean(self) -> Upload:
        """The mean over the round, as one client's upload."""
        sums = {name: vector / self.total.count for name, vector in self.total.sums.items()}
        return Upload(sums, unit=self.total.unit)


class MaskServer:
    """Forms groups and takes sums.

    Args:
        layer: What knows the numbers' format and the threshold.
        exchange: How clients are asked, and who they are.
        run: The run's id.
        seed: The run's seed.
        form: What uploads look like.
    """

    def __init__(self, layer: Masked, exchange: RoundExchange, run: str, seed: int, form: UploadForm) -> None:
        self.layer, self.exchange, self.run, self.seed, self.form = layer, exchange, run, seed, form
        self._shown: dict[int, dict[str, SignedKey]] = {}
        """Which keys each client has, as far as this process knows."""

    def begin(self, round: int, selected: Sequence[int], minimum: int) -> Group:
        """The group of a round: the selected clients that are there; all of them where those would be too few.

        Args:
            round: The round.
            selected: Who is to take part.
            minimum: How many are enough.
        """
        registry, online = self.exchange.registry, self.exchange.transport.online()
        known = [k for k in selected if k in registry.mask_keys]
        there = [k for k in known if registry.nodes.get(k) in online]
        members = there if len(there) >= max(minimum, self.layer.threshold) else known
        return self._group(round, [registry.ids[k] for k in members])

    def note(self, group: Group, client: int) -> dict[str, Any]:
        """What a client must know to mask for a group."""
        registry, has = self.exchange.registry, self._shown.get(client, {})
        keys = {registry.ids[k]: key for k, key in registry.mask_keys.items() if registry.ids[k] in group.keys}
        missing = {name: key.note() for name, key in keys.items() if has.get(name) != key}
        return {"nonce": group.nonce, "clients": list(group.keys), "keys": missing}

    def answered(self, group: Group, collected: RoundReplies) -> None:
        """Hear who answered, and so has the keys of the group."""
        registry = self.exchange.registry
        keys = {registry.ids[k]: key for k, key in registry.mask_keys.items() if registry.ids[k] in group.keys}
        for client, answer in collected.answers.items():
            if answer.trained is not None or answer.blank is not None:
                self._shown[client] = self._shown.get(client, {}) | keys
            elif answer.bad is not None or answer.lost is not None:
                self._shown.pop(client, None)
            if answer.lost is not None:
                registry.forget(client)  # its mask key is lost as well; it is asked for a new one

    def enough(self, group: Group, collected: RoundReplies) -> bool:
        """Whether a sum can be learnt from the replies, with a second question if need be."""
        return len(self._sent(collected)) == len(group.keys) or bool(self._part(group, collected))

    def total(self, group: Group, collected: RoundReplies) -> MaskedSum:
        """The sum of a round.

        Args:
            group: Those who were asked.
            collected: Their replies.

        Raises:
            Abandoned: If it cannot be learnt, or is none.
        """
        ids, answers = self.exchange.registry.ids, collected.answers
        sent, again = self._sent(collected), 0
        counted = list(collected.usable)
        if len(sent) < len(group.keys):
            part = self._part(group, collected)
            if not part:
                missing = [k for k in collected.announcement.selected if ids[k] in group.keys and k not in sent]
                reasons = "; ".join(f"{ids[k]}: {collected.why(k)}" for k in missing[:REASONS])
                raise Abandoned(
                    f"{len(sent)} of {len(group.keys)} masked messages arrived, too few to ask a part of them again "
                    f"with upload.mask_threshold = {self.layer.threshold} ({reasons})"
                )
            sent = self._ask_again(group, collected, part)
            counted, again = [k for k in counted if ids[k] in part], sum(wire.nbytes for wire in sent.values())
        trained = {k: reply for k in counted if (reply := answers[k].trained) is not None}
        total = Aggregate.of(reply.upload for reply in trained.values())
        try:
            opened = self.layer.opened(added([*sent.values()]), len(sent), self.form.like)
        except FedapmError as error:
            raise Abandoned(f"{error}: a client did not mask as it was told to, and nobody can say which") from None
        sums = (
            {name: total.sums[name] if name == NUMBERS else opened[name] for name in self.form.like} if trained else {}
        )
        sent_first = sum(reply.upload.nbytes for reply in trained.values())
        return MaskedSum(replace(total, sums=sums), trained, sent_first + again)

    def _group(self, round: int, clients: Collection[str]) -> Group:
        registry = self.exchange.registry
        keys = {registry.ids[k]: key.key for k, key in registry.mask_keys.items()}
        return Group(self.run, round, secrets.token_hex(16), {client: keys[client] for client in clients})

    def _sent(self, collected: RoundReplies) -> dict[int, Vec]:
        """The masked messages that arrived; who has no finite result sent zeros."""
        sent = {}
        for client, answer in collected.answers.items():
            wire = answer.trained.upload.wire if answer.trained is not None else answer.blank
            if wire is not None:
                sent[client] = wire
        return sent

    def _part(self, group: Group, collected: RoundReplies) -> list[str]:
        there = [self.exchange.registry.ids[k] for k in collected.usable]
        draw = numpy_generator(self.seed, "masks", group.round)
        return part_of(list(group.keys), there, self.layer.threshold, draw)

    def _ask_again(self, group: Group, collected: RoundReplies, part: Collection[str]) -> dict[int, Vec]:
        """The messages of a part of a group, masked for it alone."""
        ids, asked = self.exchange.registry.ids, collected.announcement
        fewer = self._group(group.round, part)
        header: dict[str, Any] = {"protocol": codec.PROTOCOL, "run": self.run, "token": asked.token}
        contents = {
            k: codec.records(
                header
                | {"client": ids[k], "position": k}
                | {"again": {"round": group.round, "mask": self.note(fewer, k)}}
            )
            for k in collected.usable
            if ids[k] in part
        }
        self.exchange.event(asked.about, "", f"asked again under masks: {few(list(part))}")
        sent = {
            k: self._read(reply, ids[k], group.round, header)
            for k, reply in self.exchange.ask(asked.round, contents).items()
        }
        missing = [ids[k] for k in contents if k not in sent]
        if missing:
            raise Abandoned(f"{few(missing)} did not answer when asked again")
        return {k: sent[k] for k in contents}

    def _read(self, reply: NodeReply, client: str, round: int, header: dict[str, Any]) -> Vec:
        try:
            if (why := reply.problem or reply.refused) is not None:
                raise FedapmError(why)
            return replies.read_again(reply.fields, reply.tensors, header | {"client": client}, round, self.form)
        except FedapmError as error:
            raise Abandoned(f"client {client}, asked again: {one_line(str(error))}") from None
