"""For whom a client may mask the same message: once for a group, and once more for a part of it.

Whoever has the messages of a whole group has the sum over it. So a server that has them for a group G and, because
somebody seemed to be gone, again for a part H of it, has the sums over G and over H, and so that over those who are
only in G: if one reply came late after all, that client's own message. No protocol with one message in a round without
dropouts avoids this: these messages alone must give the sum over G, and those of H with what H sends later the sum over
H. Therefore H leaves out as many as the threshold t says, some of them although they replied:

    H ⊂ G,   |H| ≥ t,   |G| − |H| ≥ t,   2·|H| > |G|

Clients that were told of different groups have masks that do not cancel, so a sum is learnt only over a group for
which all its members masked. Any two such groups that have a client in common are one within the other. By the last
condition a group has one such part at most, because two would have a client in common, and a client masks for one of
them only. So whatever the server says to whom, of a round it learns no sum over fewer than t clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedapm.errors import FedapmError

KEPT = 100
"""How many rounds are remembered; older ones are refused."""
ANSWERS = 20
"""How many times a client masks for the same groups in one round."""


def may_follow(first: Collection[str], second: Collection[str], threshold: int) -> bool:
    """Whether a client that masked its message for a group may mask it for another one.

    Args:
        first: The clients of the first group.
        second: Those of the other.
        threshold: t.
    """
    left = len(first) - len(second)
    return {*second} < {*first} and len(second) >= threshold and left >= threshold and 2 * len(second) > len(first)


def part_of(group: Collection[str], there: Collection[str], threshold: int, draw: np.random.Generator) -> list[str]:
    """The largest part of a group that may be asked again; nobody where there is none.

    Args:
        group: The clients of the group.
        there: Those of them that replied.
        threshold: t.
        draw: Decides who is left out.
    """
    size = min(len(there), len(group) - threshold)
    if size < 1:
        return []
    chosen = {str(client) for client in draw.permutation(sorted(there))[:size]}
    part = [client for client in group if client in chosen]
    return part if may_follow(group, part, threshold) else []


@dataclass(frozen=True)
class Answer:
    """One masked message that a client has sent."""

    clients: frozenset[str]
    nonce: str
    message: str
    """A checksum of the message without its mask."""


@dataclass(frozen=True)
class Guard:
    """What a client has masked, and so what it must not mask any more."""

    rounds: Mapping[int, tuple[Answer, ...]] = field(default_factory=dict)

    def admit(self, round: int, answer: Answer, threshold: int) -> Guard:
        """What is remembered when a message has been masked.

        Args:
            round: The round.
            answer: What is to be masked, and for whom.
            threshold: t.

        Raises:
            FedapmError: If it must not be masked.
        """
        if len(answer.clients) < threshold:
            raise FedapmError(
                f"the server asks for a sum over {len(answer.clients)} clients; at least {threshold} must be in it."
            )
        if len(self.rounds) >= KEPT and round < min(self.rounds):
            raise FedapmError(f"round {round} is too long ago to be masked again.")
        before = self.rounds.get(round, ())
        if answer in before:
            return self
        if any(old.nonce == answer.nonce for old in before):
            raise FedapmError(
                f"the server gives a nonce of round {round} to another message; one mask hides one message."
            )
        groups = list(dict.fromkeys(old.clients for old in before))
        known = not groups or answer.clients in groups
        if not known and (len(groups) > 1 or not may_follow(groups[0], answer.clients, threshold)):
            raise FedapmError(
                f"its message of round {round} is masked for other clients already; with this group as well, the "
                f"server could learn a sum over fewer than {threshold} of them."
            )
        if len(before) >= ANSWERS:
            raise FedapmError(f"its message of round {round} was asked for too often.")
        rounds = {**self.rounds, round: (*before, answer)}
        kept = sorted(rounds)[-KEPT:]
        return replace(self, rounds={number: rounds[number] for number in kept})

    def note(self) -> dict[str, Any]:
        """The guard as JSON."""
        return {
            str(round): [[sorted(a.clients), a.nonce, a.message] for a in answers]
            for round, answers in self.rounds.items()
        }

    @classmethod
    def read(cls, note: Mapping[str, Any]) -> Guard:
        """The inverse of :meth:`note`."""
        return cls(
            {
                int(round): tuple(Answer(frozenset(map(str, who)), str(n), str(m)) for who, n, m in answers)
                for round, answers in note.items()
            }
        )
