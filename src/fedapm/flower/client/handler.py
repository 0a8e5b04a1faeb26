"""Answer the server's messages on a node, independently of how they are sent."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.messages import collect_messages
from fedapm.core.metrics import Score
from fedapm.core.network import Loss
from fedapm.core.split import check_same_shared
from fedapm.core.vec import Vec
from fedapm.data.clients import ClientData
from fedapm.errors import FedapmError
from fedapm.experiments.settings import Experiment
from fedapm.flower.client.data import Loader, load_client_data
from fedapm.flower.client.masks import NodeMasks
from fedapm.flower.client.node import Node
from fedapm.flower.client.request import (
    CORRECTION,
    AgainRequest,
    HelloRequest,
    RoundRequest,
    read_again,
    read_broadcast,
    read_change,
    read_correction,
    read_hello,
    read_round,
    time_limit,
)
from fedapm.flower.client.time_limit import within
from fedapm.flower.client.versions import Version, Versions
from fedapm.flower.problem import WIRE, DataSummary, Membership, NodeProblem, sent_vectors
from fedapm.flower.text import one_line, shown
from fedapm.flower.transport.codec import PROTOCOL, Fields, Tensors, digest, shapes
from fedapm.flower.transport.version import FRESH, round_of, version_id
from fedapm.runs.files import write_tensors
from fedapm.simulation.engines.base import client_init
from fedapm.simulation.engines.sequential import evaluate_client, load_model, personalize_client, train_client
from fedapm.simulation.problem import Model
from fedapm.simulation.stores.base import ClientState, flatten
from fedapm.uploads import Announced, layer_of

logger = logging.getLogger(__name__)
CLIENT = 0
"""The index of a node's only client in its own problem."""
MODEL = "model"
"""The final model's file, without its ending."""
ECHO = 64
"""The longest text that a reply repeats."""


class MessageHandler:
    """Answers messages for one client on its node."""

    def __init__(
        self,
        node: Node,
        data: Loader | None = None,
        model: Model | None = None,
        loss: Loss | None = None,
        folder: Path | None = None,
    ) -> None:
        self.node, self.loader, self.model, self.loss = node, data, model, loss
        self.folder = folder
        """Where the modules of the app are, if they are not installed."""

    def answer(self, request: Fields, tensors: Tensors) -> tuple[Fields, Tensors]:
        """The reply to a message; an error is reported in its field ``refused``, in one line."""
        # one thread a process, as everywhere: results do not depend on how many cores a node has
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        header = {"protocol": PROTOCOL} | {name: _echoed(request.get(name)) for name in ("run", "token")}
        try:
            if request.get("protocol") != PROTOCOL:
                raise FedapmError(
                    f"the server speaks protocol {shown(request.get('protocol'))}, this node {PROTOCOL}; use the same "
                    "version of fedapm on both."
                )
            if "hello" in request:
                reply, upload = self._hello(read_hello(request))
            elif "again" in request:
                reply, upload = self._again(read_again(request))
            else:
                asked = read_round(request)
                reply, upload = within(time_limit(request), lambda: self._round(asked, tensors))
        except FedapmError as error:
            return header | {"refused": str(error)}, {}
        except Exception as error:  # the user's own data function or network may raise anything
            logger.exception("the work of this node failed")
            reason = one_line(f"{type(error).__name__}: {error}")
            return header | {"refused": f"its work failed ({reason}); its node's log says where."}, {}
        return header | reply, upload

    def _hello(self, request: HelloRequest) -> tuple[Fields, Tensors]:
        client = self.node.client_id(request.clients)
        _, summary = self._data(self._here(request.experiment), client, request.clients.index(client))
        reply: Fields = {"client": client, "data": summary.to_json()}
        self._check_masks(request.experiment)
        if request.experiment.upload.mask:
            versions = Versions(self.node.state, request.run, client)
            with versions.locked():
                reply["mask"] = NodeMasks(self.node, versions.folder, request.run, client).own().note()
        return reply, {}

    def _again(self, request: AgainRequest) -> tuple[Fields, Tensors]:
        """The message of a round, masked once more for fewer clients."""
        self._check_client(request.client, request.position)
        versions = Versions(self.node.state, request.run, request.client)
        with versions.locked():
            wire = sent_vectors(versions.load(version_id(request.round, request.token)).upload)[WIRE]
            masks = NodeMasks(self.node, versions.folder, request.run, request.client)
            tensors, sums = flatten("sums", {WIRE: masks.masked(request.round, request.mask, wire)})
        return {"client": request.client, "again": {"round": request.round, "sums": sums}}, tensors

    def _check_client(self, client: str, position: int) -> None:
        # a node may have been restarted as another client since the server learned who it is
        asked, own = (position, self.node.partition) if self.node.client is None else (client, self.node.client)
        if own != asked:
            raise FedapmError(f"a message for client {asked!r} reached the node of client {own!r}.")

    def _check_masks(self, experiment: Experiment) -> None:
        """Refuse a run that hides less than the node demands."""
        least, settings = self.node.mask_threshold, experiment.upload
        if least is not None and (not settings.mask or settings.threshold < least):
            there = f"has upload.mask_threshold = {settings.threshold}" if settings.mask else "has no masks"
            raise FedapmError(
                f"this node takes part only where {least} clients or more are added up, but the run {there}."
            )

    def _here(self, experiment: Experiment) -> Experiment:
        """The settings, with the modules of this node's own app."""
        folder = str(self.folder) if self.folder is not None else None
        if folder is not None and experiment.model.factory is not None:
            experiment = replace(experiment, model=replace(experiment.model, folder=folder))
        if folder is not None and experiment.data.factory is not None:
            experiment = replace(experiment, data=replace(experiment.data, folder=folder))
        return experiment

    def _data(self, experiment: Experiment, client: str, position: int) -> tuple[ClientData, DataSummary]:
        settings = self.node.data_settings(experiment.data)
        data, federation = load_client_data(settings, client, position, self.loader, self.node.data_file)
        return data, DataSummary.of(data, federation)

    def _round(self, request: RoundRequest, tensors: Tensors) -> tuple[Fields, Tensors]:
        client, position, experiment = request.client, request.position, self._here(request.experiment)
        self._check_client(client, position)
        self._check_masks(experiment)
        versions = Versions(self.node.state, request.run, client)
        data, _ = self._data(experiment, client, position)
        membership = Membership(position, request.m, request.samples, request.classes, request.batches)
        problem = NodeProblem(experiment, data, membership, self.model, self.loss, self.node.device)
        _check_start(problem, request)
        algorithm = experiment.method
        received = {n: t.to(problem.device) for n, t in tensors.items()}
        told = {n: received.pop(n) for n in tensors if n.startswith(CORRECTION)}
        with versions.locked():
            broadcast = _broadcast(request, received, problem, algorithm, versions)
            with collect_messages() as messages:
                masks = NodeMasks(self.node, versions.folder, request.run, client) if experiment.upload.mask else None
                handler = _RoundHandler(experiment, problem, versions, client, broadcast, told, masks)
                reply, upload = handler.answer(request)
            return reply | {"remarks": messages}, upload


class _RoundHandler:
    """Evaluates and trains the client as one round message asks."""

    def __init__(
        self,
        experiment: Experiment,
        problem: NodeProblem,
        versions: Versions,
        client: str,
        broadcast: State,
        told: Tensors,
        masks: NodeMasks | None,
    ) -> None:
        self.masks, self.threshold = masks, experiment.upload.threshold
        self.problem, self.versions, self.client, self.broadcast = problem, versions, client, broadcast
        self.told = told
        """What the server counted of the accepted version, where it is something else than was sent."""
        self.algorithm = experiment.method

    def answer(self, request: RoundRequest) -> tuple[Fields, Tensors]:
        accepted = request.accepted
        reply: Fields = {"client": self.client}
        base: Version | None = None
        if accepted != FRESH:
            try:
                base = self.versions.load(accepted)
            except FedapmError as error:
                return reply | {"lost": accepted, "has": self.versions.ids(), "why": str(error)}, {}
        client_state = base.client_state if base is not None else client_init(self.problem, self.algorithm)(CLIENT)
        correction = read_correction(self.told, client_state.state, self.algorithm)
        client_state = replace(client_state, state=self.algorithm.corrected(client_state.state, correction))
        if request.evaluate:
            reply["scores"] = self._scores(client_state)
            # only clients that took part in the last round have drifted from the shared model in it
            took_part = base is not None and round_of(accepted) == request.round
            reply["drift"] = self._drift(base.u) if took_part and base is not None else None
        if request.closing:
            # only the model comes of it: a longer run goes on from the accepted version
            client_state = personalize_client(
                self.problem, self.algorithm, CLIENT, client_state, self.broadcast, request.round, request.closing
            )
            reply["closing_scores"] = self._scores(client_state)
        if request.finish:
            self._write_models(client_state, request.round)
        upload: Tensors = {}
        if request.train is not None:
            reply["trained"], upload = self._train(request, request.train, client_state)
        self.versions.prune(request.keep, accepted)
        return reply, upload

    def _scores(self, client_state: ClientState) -> dict[str, dict[str, Score]]:
        return {
            view: evaluate_client(self.problem, self.algorithm, CLIENT, client_state, self.broadcast, view)
            for view in self.algorithm.views
        }

    def _train(self, request: RoundRequest, round: int, client_state: ClientState) -> tuple[Fields, Tensors]:
        id = version_id(round, request.token)
        # an announcement that arrives twice gets the same reply twice
        stored: Version | None = None
        if self.versions.has(id):
            with suppress(FedapmError):
                stored = self.versions.load(id)
        if stored is not None:
            return self._training_reply(request, stored)
        result = train_client(self.problem, self.algorithm, CLIENT, client_state, self.broadcast, round)
        update = result.update
        if not result.is_finite():
            if self.masks is None or update.upload.wire is None:
                return {"round": round, "finite": False}, {}
            # zeros, so that the others' masks cancel all the same
            tensors, sums = self._sent(request, {WIRE: update.upload.wire.zeros()})
            return {"round": round, "finite": False, "sums": sums}, tensors
        version = Version(id, ClientState(update.state, result.buffers), update.u, update.upload, result.log)
        self.versions.save(version)
        return self._training_reply(request, version)

    def _training_reply(self, request: RoundRequest, version: Version) -> tuple[Fields, Tensors]:
        tensors, sums = self._sent(request, sent_vectors(version.upload))
        log = [asdict(stats) for stats in version.log]
        weight = version.upload.weight
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


def _broadcast(
    request: RoundRequest, tensors: Tensors, problem: NodeProblem, algorithm: Algorithm, versions: Versions
) -> State:
    """What the server sent: whole, or from what it sent before; kept where the next may be a change of it."""
    like = algorithm.broadcast(algorithm.server_init(problem.u0))
    layer = layer_of(algorithm, Announced)
    if layer is None:
        return read_broadcast(request.down, tensors, like)
    if request.base is None:
        broadcast = read_broadcast(request.down, tensors, like)
    else:
        token, before = versions.load_broadcast(problem.device)
        if token == request.token:  # an announcement that arrives twice
            return before
        if token != request.base:
            raise FedapmError("it does not have the broadcast that the server's is a change of.")
        broadcast = read_change(request.down, tensors, like, before, layer)
    versions.save_broadcast(request.token, broadcast)
    return broadcast


def _check_start(problem: NodeProblem, request: RoundRequest) -> None:
    """Refuse a node whose shared parameters differ from the server's, or whose network has other frozen weights."""
    check_same_shared(request.shapes, shapes(problem.u0), request.client)
    if digest(problem.u0) != request.digest:
        raise FedapmError(
            f"client {request.client} starts from other values of the shared parameters than the server; use the same "
            "versions of torch and of the app on both."
        )
    if problem.frozen_digest != request.frozen:
        raise FedapmError(
            f"client {request.client} has other frozen weights than the server; give its node the same base network."
        )


def _echoed(value: Any) -> str | None:
    """A short text of the server's message as the reply carries it."""
    return value if isinstance(value, str) and len(value) <= ECHO else None
