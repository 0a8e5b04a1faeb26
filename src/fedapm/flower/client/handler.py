"""Answer the server's messages on a node, independently of how they are sent."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.network import Loss
from fedapm.core.split import check_same_shared
from fedapm.data.clients import ClientData
from fedapm.errors import FedapmError
from fedapm.experiments.settings import Experiment
from fedapm.flower.client.data import Loader, load_client_data
from fedapm.flower.client.discretion import Discretion
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
    read_hello,
    read_round,
    time_limit,
)
from fedapm.flower.client.spending import check_counted, check_demands
from fedapm.flower.client.time_limit import within
from fedapm.flower.client.versions import Versions
from fedapm.flower.client.worker import RoundWorker
from fedapm.flower.problem import WIRE, DataSummary, Membership, NodeProblem, sent_vectors
from fedapm.flower.text import one_line, shown
from fedapm.flower.transport.codec import PROTOCOL, Fields, Tensors, digest, shapes
from fedapm.flower.transport.version import version_id
from fedapm.simulation.problem import Model
from fedapm.simulation.stores.base import flatten
from fedapm.uploads import Announced, layer_of

logger = logging.getLogger(__name__)
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
        client, discretion = self.node.client_id(request.clients), self._discretion(request.experiment)
        with discretion.at_work():
            _, summary = self._data(self._here(request.experiment), client, request.clients.index(client))
        reply: Fields = {"client": client, "data": discretion.summary(summary).to_json()}
        self._check_masks(request.experiment)
        check_demands(self.node, request.experiment.privacy, summary.train)
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

    def _discretion(self, experiment: Experiment) -> Discretion:
        return Discretion(experiment.privacy, self.node.tell)

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
        versions, discretion = Versions(self.node.state, request.run, client), self._discretion(experiment)
        with discretion.at_work():
            data, _ = self._data(experiment, client, position)
            membership = Membership(position, request.m, request.samples, request.classes, request.batches)
            problem = NodeProblem(experiment, data, membership, self.model, self.loss, self.node.device)
        check_demands(self.node, experiment.privacy, len(data.train))
        _check_start(problem, request)
        received = {n: t.to(problem.device) for n, t in tensors.items()}
        told = {n: received.pop(n) for n in tensors if n.startswith(CORRECTION)}
        with versions.locked():
            broadcast = _broadcast(request, received, problem, experiment.method, versions)
            check_counted(versions.folder, experiment.privacy)
            masks = NodeMasks(self.node, versions.folder, request.run, client) if experiment.upload.mask else None
            worker = RoundWorker(experiment, problem, versions, client, broadcast, told, masks, discretion)
            return worker.answer(request)


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
