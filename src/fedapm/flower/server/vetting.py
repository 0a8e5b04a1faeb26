"""Vetting: which updates must not be used, whoever sent them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedapm.core.algorithm import NUMBERS, Aggregate, Algorithm, State, Upload
from fedapm.flower.fields import LARGEST
from fedapm.flower.server.masks import Abandoned, MaskedSum
from fedapm.flower.server.norm_limit import NormLimit, Seen, norms_of
from fedapm.flower.server.replies import ClientReply
from fedapm.privacy import Private
from fedapm.uploads import Masked, layer_of, screened

SLACK = 1e-5
"""How much longer, relative to its bound, rounding may make a message that was clipped."""


class Vetting:
    """Looks at the updates of a round together.

    With client-level privacy only the bound S is looked at: whatever depended on the other clients' messages would let
    one client move more of the sum than is accounted for.

    Args:
        method: The method.
        limit: How long an update may be.
        m: How many clients there are.
    """

    def __init__(self, method: Algorithm, limit: NormLimit, m: int) -> None:
        self.method, self.limit, self.m = method, limit, m
        self.private, self.masked = layer_of(method, Private), layer_of(method, Masked) is not None

    def refused(self, updates: Mapping[int, Upload], server: State | None, seen: Seen) -> dict[int, ClientReply]:
        """The updates that must not be used, and why: far too long ones, and those that make the state infinite.

        Args:
            updates: The updates at hand, by client.
            server: The server's state, if it is known.
            seen: The norms of the last accepted updates.
        """
        if self.masked:
            return {}  # only their sum can be looked at
        if self.private is not None:
            return {k: ClientReply(bad=why) for k, u in updates.items() if (why := self._beyond(u, server)) is not None}
        wrong = {
            k: ClientReply(bad=why, diverged=not all(norm <= LARGEST for norm in norms_of(updates[k]).values()))
            for k, why in self.limit.refused(seen, updates).items()
        }
        left = {k: upload for k, upload in updates.items() if k not in wrong}
        while left and not self._stays_finite([*left.values()], server):
            longest = max(left, key=lambda k: sum(norms_of(left[k]).values()))
            del left[longest]
            wrong[longest] = ClientReply(bad="with its update the server's state would not be finite", diverged=True)
        return wrong

    def check_sum(self, found: MaskedSum, server: State | None, seen: Seen) -> None:
        """Look at a sum as at single updates where there are no masks.

        Args:
            found: The sum of a round.
            server: The server's state, if it is known.
            seen: The norms of the last means.

        Raises:
            Abandoned: If it must not be used.
        """
        if not found.clients:
            return
        if self.private is not None:
            if (why := self._beyond(found.mean(), server)) is not None:
                raise Abandoned(why.replace("its ", "the mean ", 1))
            return
        wrong = self.limit.refused(seen, {0: found.mean()})
        if wrong:
            raise Abandoned(wrong[0].replace("its ", "the mean ", 1))
        if not self._keeps_finite(found.total, server):
            raise Abandoned("with its sum the server's state would not be finite")

    def _beyond(self, upload: Upload, server: State | None) -> str | None:
        """Why a message is longer than S; None where it is not."""
        assert self.private is not None
        if server is None:
            return None
        most = self.private.longest(server)
        for name, vector in upload.sums.items():
            norm = vector.norm() / abs(upload.unit) if name != NUMBERS else 0.0
            if not norm <= most * (1 + SLACK):
                return f"its {name} has norm {norm:.3g}, more than privacy.clip = {most:.3g} allows"
        return None

    def _stays_finite(self, uploads: Sequence[Upload], server: State | None) -> bool:
        if server is None:
            return True
        try:
            total = Aggregate.of(uploads)
            if self.method.screens:
                counted = screened(self.method, server, uploads).total
                total = counted if counted.count else total
            return self._keeps_finite(total, server)
        except ArithmeticError:
            return False

    def _keeps_finite(self, total: Aggregate, server: State | None) -> bool:
        if server is None:
            return True
        try:
            return self.method.server_update(server, total, self.m).is_finite()
        except ArithmeticError:
            return False
