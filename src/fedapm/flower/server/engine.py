"""The engine that runs clients on Flower's nodes. To the loop it is one more engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import RecordDict

from fedapm.core.algorithm import Aggregate, Algorithm, State
from fedapm.core.metrics import Score
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.server.contributions import NONE, Contributions, taken_back
from fedapm.flower.server.exchange import Announcement, Event, RoundExchange, RoundReplies
from fedapm.flower.server.ledger import Entry, Ledger
from fedapm.flower.server.replies import TrainReply
from fedapm.flower.settings import Deployment
from fedapm.flower.transport import codec
from fedapm.flower.transport.version import version_id
from fedapm.simulation.engines.base import Undo, local_work
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import Store, flatten


class FlowerRoundResult:
    """A round's accepted answers."""

    def __init__(
        self,
        round: int,
        token: str,
        trained: Mapping[int, TrainReply],
        gone: Mapping[int, Mapping[str, Vec]],
        contributions: Contributions | None,
    ) -> None:
        self.round, self.token, self._trained = round, token, trained
        self._gone, self._contributions = gone, contributions
        self.good: list[int] = list(trained)
        uploads = [done.upload for done in trained.values()]
        self.bytes_up = sum(upload.nbytes for upload in uploads)
        self.local = local_work([done.log for done in trained.values()])
        total = Aggregate.of(uploads)
        back = taken_back(gone.values()) if uploads else {}
        sums = {name: vector + back[name] if name in back else vector for name, vector in total.sums.items()}
        self.total = Aggregate(sums, total.weight, total.count)

    def drift(self, server: State, names: Sequence[str]) -> None:
        """Not known yet: the clients' copies are on their nodes, and these measure it when they hear the new model."""
        del server, names

    def commit(self, store: Store) -> Undo:
        """Write down whose answers were accepted, and who begins anew; the result takes that back."""
        assert isinstance(store, Ledger)
        changes = {client: Entry() for client in self._gone}
        for client, done in self._trained.items():
            version, contribution = version_id(self.round, self.token), NONE
            if self._contributions is not None:
                before = store.entry(client).contribution
                contribution = self._contributions.grown(client, version, before, done.upload)
            changes[client] = Entry(version, contribution)
        return store.settle(self.round, changes)


class FlowerEngine:
    """Runs clients where they are.

    A round is one exchange. The broadcast that begins a round is also what the round before it is judged by, so one
    message asks for both: when the loop asks for an evaluation, the selected clients of the next round already train.
    """

    name = "flower"

    def __init__(
        self,
        gatherer: RoundExchange,
        deployment: Deployment,
        problem: Problem,
        schedule: Schedule,
        ledger: Ledger,
        contributions: Contributions | None,
        keep: Callable[[int], str],
        requested: Callable[[int, str], bool],
        event: Event,
    ) -> None:
        self.gatherer, self.schedule, self.ledger = gatherer, schedule, ledger
        self.experiment, self.settings = deployment.experiment, deployment.flower
        self.algorithm: Algorithm = deployment.experiment.algorithm
        self.seed = problem.seed
        self.contributions, self._keep, self._requested, self._event = contributions, keep, requested, event
        self._said: list[str] = []
        self._told: set[tuple[int, str]] = set()
        self._ahead: RoundReplies | None = None
        self._judged: RoundReplies | None = None
        outlines = list(ledger.outlines.values())
        self._common: dict[str, Any] = {
            "protocol": codec.PROTOCOL,
            "run": ledger.run,
            "settings": self.experiment.tables(),
            "m": len(ledger),
            "samples": sum(o.train for o in outlines),
            "classes": max(o.classes for o in outlines),
            "u0": {"digest": ledger.start, "shapes": codec.shapes(problem.u0)},
        }

    @property
    def remarks(self) -> list[str]:
        """What the nodes had to say."""
        return self._said

    def run_round(self, clients: Sequence[int], broadcast: State, store: Store, round: int) -> FlowerRoundResult:
        """The local work of the selected clients; where it was asked for ahead, what came of that."""
        del store
        found, self._ahead = self._ahead, None
        if found is None or (found.announcement.training, [*found.announcement.selected]) != (round, [*clients]):
            found = self._announce(Announcement(round - 1, False, clients, clients), broadcast)
        trained = {k: done for k in found.usable if (done := found.answers[k].trained) is not None}
        kept = self.contributions if self.algorithm.cumulative else None
        return FlowerRoundResult(round, found.announcement.token, trained, self._begin_anew(found, round), kept)

    def evaluate(self, clients: Sequence[int], broadcast: State, store: Store, view: str) -> Iterable[dict[str, Score]]:
        """Scores of the clients' models; the same message begins the next round."""
        del store
        round = self.ledger.round
        if self._judged is None or self._judged.announcement.round != round:
            last = round >= self.schedule.rounds
            selected = [] if last else self.schedule.sampling.draw(len(self.ledger), self.seed, round + 1)
            self._judged = self._announce(Announcement(round, True, selected, list(clients), last), broadcast)
            self._ahead = None if last else self._judged
        answers = self._judged.answers
        rows = {k: scores[view] for k in answers if (scores := answers[k].scores) is not None}
        names = next((list(row) for row in rows.values()), ["train_loss", "test_loss"])
        nothing: dict[str, Score] = dict.fromkeys(names)
        return [rows.get(k, nothing) for k in clients]

    def drift(self) -> float | None:
        """How far the clients of the round that was judged last were from its result, on average."""
        answers = self._judged.answers if self._judged is not None else {}
        gaps = [gap for k in sorted(answers) if (gap := answers[k].drift) is not None]
        if not gaps:
            return None
        # in this order, so that it is the sum one process would have made
        drift = sum(norm for gap in gaps for norm in gap) / len(gaps)
        return drift if math.isfinite(drift) else None

    def close(self) -> None:
        """Nothing is held."""

    def _announce(self, announcement: Announcement, broadcast: State) -> RoundReplies:
        tensors, note = flatten("down", broadcast)
        vectors = codec.block(tensors)
        finish = announcement.round >= self.schedule.rounds and self.experiment.engine.save_models
        common = self._common | {
            "down": note,
            "round": announcement.round,
            "token": announcement.token,
            "evaluate": announcement.evaluate,
            "finish": finish,
        }

        def letter(client: int) -> RecordDict:
            own = {
                "client": self.ledger.ids[client],
                "position": client,
                "accepted": self.ledger.entry(client).accepted,
                "keep": self._keep(client),
                "train": announcement.training if client in announcement.selected else None,
            }
            return codec.records(common | own, vectors)

        found = self.gatherer.gather(announcement, letter)
        for client in sorted(found.answers):
            answer = found.answers[client]
            self._said += [text for text in answer.remarks if text not in self._said]
            if answer.lost is not None:
                self._once(announcement.about, client, f"its state is lost: {answer.lost}")
        return found

    def _begin_anew(self, found: RoundReplies, round: int) -> dict[int, dict[str, Vec]]:
        """The clients that lost their state and may begin anew, each with what the server must no longer count."""
        gone: dict[int, dict[str, Vec]] = {}
        for client in sorted(k for k, answer in found.answers.items() if answer.lost is not None):
            decided = self._decide(client)
            if isinstance(decided, str):
                self._once(round, client, f"left out: {decided}")
            else:
                gone[client] = decided
                self._once(round, client, "begins anew: what it had sent is no longer counted")
        return gone

    def _decide(self, client: int) -> dict[str, Vec] | str:
        """What must be taken back so that a client can begin anew, or why it must not."""
        entry, cumulative = self.ledger.entry(client), self.algorithm.cumulative
        if cumulative == ():
            return {}
        if self.settings.lost == "wait" and not self._requested(client, entry.accepted):
            return "restore its folder from a backup, or re-admit it (fedapm flower readmit)"
        if cumulative is None or self.contributions is None or entry.contribution == NONE:
            why = "flower.keep_contributions is off" if cumulative else "its method does not say what it remembers"
            return f"{why}, so only a backup of its folder can bring it back"
        try:
            return self.contributions.read(entry.contribution)
        except FedapmError as error:
            return str(error)

    def _once(self, round: int, client: int, what: str) -> None:
        """Tell of something that would be as true in every round that follows."""
        if (client, what) not in self._told:
            self._told.add((client, what))
            self._event(round, self.ledger.ids[client], what)
