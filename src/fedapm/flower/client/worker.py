"""The work of one round on a node: evaluate, close, train, and say what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.metrics import Score
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.experiments.settings import Experiment
from fedapm.flower.client.discretion import Discretion
from fedapm.flower.client.masks import NodeMasks
from fedapm.flower.client.node import EPSILON, SCORES
from fedapm.flower.client.request import RoundRequest, read_correction
from fedapm.flower.client.spending import NodeSpending
from fedapm.flower.client.versions import Version, Versions
from fedapm.flower.problem import WIRE, NodeProblem, sent_vectors
from fedapm.flower.transport.codec import Fields, Tensors
from fedapm.flower.transport.version import FRESH, round_of, version_id
from fedapm.privacy import STEPS
from fedapm.runs.files import write_json, write_tensors
from fedapm.simulation.engines.base import ClientResult, client_init
from fedapm.simulation.engines.sequential import evaluate_client, load_model, personalize_client, train_client
from fedapm.simulation.stores.base import ClientState, flatten

CLIENT = 0
"""The index of a node's only client in its own problem."""
MODEL = "model"
"""The final model's file, without its ending."""
OWN_SCORES = "scores.json"
"""The client's last scores, where they stay on the node."""


class RoundWorker:
    """Evaluates and trains the client as one round message asks. The caller has the lock of the client's folder.

    Args:
        experiment: The run's settings.
        problem: The client's problem.
        versions: Its states.
        client: Its id.
        broadcast: What the server sent.
        told: What the server counted of the accepted version, where it is something else than was sent.
        masks: What masks its messages, where they are masked.
        discretion: What it tells beside.
    """

    def __init__(
        self,
        experiment: Experiment,
        problem: NodeProblem,
        versions: Versions,
        client: str,
        broadcast: State,
        told: Tensors,
        masks: NodeMasks | None,
        discretion: Discretion,
    ) -> None:
        self.masks, self.threshold = masks, experiment.upload.threshold
        self.problem, self.versions, self.client, self.broadcast = problem, versions, client, broadcast
        self.told, self.discretion = told, discretion
        self.algorithm: Algorithm = experiment.method
        self.spending: NodeSpending | None = None
        if experiment.privacy.per_sample:
            samples = len(problem.federation[CLIENT].train)
            self.spending = NodeSpending(versions.folder, experiment.privacy, experiment.solver, samples)

    def answer(self, request: RoundRequest) -> tuple[Fields, Tensors]:
        """The reply to a message, and the tensors of the upload."""
        reply: Fields = {"client": self.client}
        base: Version | None = None
        if request.accepted != FRESH:
            try:
                base = self.versions.load(request.accepted)
            except FedapmError as error:
                return reply | {"lost": request.accepted, "has": self.versions.ids(), "why": str(error)}, {}
        client_state = base.client_state if base is not None else client_init(self.problem, self.algorithm)(CLIENT)
        correction = read_correction(self.told, client_state.state, self.algorithm)
        client_state = replace(client_state, state=self.algorithm.corrected(client_state.state, correction))
        version: Version | ClientResult | None = None
        with self.discretion.at_work(), self.discretion.remarks() as remarks:
            reply |= self._looked_at(request, client_state, base)
            if request.train is not None:
                version = self._trained(request, request.train, self._counted(client_state))
        upload: Tensors = {}
        if request.train is not None and version is not None:
            reply["trained"], upload = self._training_reply(request, version)
        if self.spending is not None:
            reply["spending"] = self._spent(self.spending, client_state, request.round + 1)
        self.versions.prune(request.keep, request.accepted)
        return reply | ({} if self.discretion.active else {"remarks": remarks}), upload

    def _looked_at(self, request: RoundRequest, client_state: ClientState, base: Version | None) -> Fields:
        """The scores that are asked for, before and after the closing phase, and the client's drift."""
        found: Fields = {}
        if request.evaluate:
            found["scores"] = self._scores(client_state)
            # only clients that took part in the last round have drifted from the shared model in it
            took_part = base is not None and round_of(request.accepted) == request.round
            found["drift"] = self._drift(base.u) if took_part and base is not None else None
        if request.closing:
            client_state = self._closed(self._counted(client_state), request.round, request.closing)
            found["closing_scores"] = self._scores(client_state)
        if request.finish:
            self._write_models(client_state, request.round)
        if not self.discretion.active:
            return found
        scores = {name: value for name, value in found.items() if name != "drift"}
        if scores:
            write_json(self.versions.folder / OWN_SCORES, {"round": request.round} | scores)
        return scores if self.discretion.tells(SCORES) else {}

    def _closed(self, client_state: ClientState, round: int, epochs: int) -> ClientState:
        """The state after the closing phase. Only models come of it: longer runs go on from the accepted version."""
        closed = personalize_client(self.problem, self.algorithm, CLIENT, client_state, self.broadcast, round, epochs)
        if self.spending is not None:
            self.spending.add(int(closed.state.numbers[STEPS] - client_state.state.numbers[STEPS]))
        return closed

    def _counted(self, client_state: ClientState) -> ClientState:
        """The client's state with all of its noised steps, where those are counted."""
        if self.spending is None:
            return client_state
        return replace(client_state, state=self.spending.begin(client_state.state))

    def _spent(self, spending: NodeSpending, client_state: ClientState, round: int) -> Fields:
        """Whether the budget is spent, and where the node's owner allows it what was spent."""
        exhausted = not self._takes_part(self._counted(client_state), round)
        told = {"steps": spending.steps, "epsilon": spending.epsilon} if self.discretion.tells(EPSILON) else {}
        return {"exhausted": exhausted} | told

    def _takes_part(self, client_state: ClientState, round: int) -> bool:
        if self.algorithm.abstains is None:
            return True
        return self.algorithm.takes_part(self.broadcast, client_state.state, self.problem.task(CLIENT, round))

    def _scores(self, client_state: ClientState) -> dict[str, dict[str, Score]]:
        return {
            view: evaluate_client(self.problem, self.algorithm, CLIENT, client_state, self.broadcast, view)
            for view in self.algorithm.views
        }

    def _trained(self, request: RoundRequest, round: int, client_state: ClientState) -> Version | ClientResult | None:
        """The version after training; the result itself where it is not finite, None where the client takes no part."""
        id = version_id(round, request.token)
        # an announcement that arrives twice gets the same reply twice
        if self.versions.has(id):
            with suppress(FedapmError):
                return self.versions.load(id)
        if not self._takes_part(client_state, round):
            return None
        result = train_client(self.problem, self.algorithm, CLIENT, client_state, self.broadcast, round)
        if self.spending is not None:
            self.spending.add(sum(solved.steps for solved in result.log))
        if not result.is_finite():
            return result
        update = result.update
        version = Version(id, ClientState(update.state, result.buffers), update.u, update.upload, result.log)
        self.versions.save(version)
        return version

    def _training_reply(self, request: RoundRequest, trained: Version | ClientResult) -> tuple[Fields, Tensors]:
        if isinstance(trained, ClientResult):
            wire = trained.update.upload.wire
            if self.masks is None or wire is None:
                return {"round": request.train, "finite": False}, {}
            # zeros, so that the others' masks cancel all the same
            tensors, sums = self._sent(request, {WIRE: wire.zeros()})
            return {"round": request.train, "finite": False, "sums": sums}, tensors
        tensors, sums = self._sent(request, sent_vectors(trained.upload))
        log = [] if self.discretion.active else [asdict(stats) for stats in trained.log]
        weight = trained.upload.weight
        return {"round": request.train, "finite": True, "weight": weight, "sums": sums, "log": log}, tensors

    def _sent(self, request: RoundRequest, vectors: Mapping[str, Vec]) -> tuple[Tensors, Fields]:
        """What goes over the wire: under masks what is stored is not what is sent."""
        if self.masks is not None:
            if request.mask is None or request.train is None:
                raise FedapmError("the server asks for a message without a mask.")
            hidden = self.masks.masked(request.train, request.mask, vectors[WIRE], self.threshold)
            vectors = {WIRE: hidden}
        return flatten("sums", vectors)

    def _drift(self, u: Vec) -> list[float] | None:
        """The distance of each shared tensor of the client's copy from the shared model; None where there is none."""
        center = self.broadcast.vectors.get("u")
        names = [n for n in self.problem.drift_names if n in u]
        if center is None or not names:
            return None
        difference = u.only(names) - center.only(names)
        return [t.double().norm().item() for t in difference.values()]

    def _write_models(self, client_state: ClientState, round: int) -> None:
        views = self.algorithm.views
        for view in views:
            load_model(self.problem, self.algorithm, CLIENT, client_state, self.broadcast, view)
            module = self.problem.network(CLIENT).module
            suffix = "" if len(views) == 1 else f"-{view}"
            metadata = {"client": self.client, "method": self.algorithm.name, "round": round}
            path = self.versions.folder / f"{MODEL}{suffix}.safetensors"
            write_tensors(path, {n: t.detach() for n, t in module.state_dict().items()}, metadata)
