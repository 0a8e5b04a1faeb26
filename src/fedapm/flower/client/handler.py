"""Client: what a node does with a message. It knows nothing of how messages travel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch

from fedapm.core.algorithm import State, Upload
from fedapm.core.messages import collect_messages
from fedapm.core.network import Loss
from fedapm.core.split import check_same_shared
from fedapm.core.vec import Vec
from fedapm.data.federation import ClientData
from fedapm.errors import FedapmError
from fedapm.experiments.settings import Experiment
from fedapm.flower.client.data import Loader, own_data
from fedapm.flower.client.node import Node
from fedapm.flower.client.versions import Version, Versions
from fedapm.flower.problem import DataSummary, NodeProblem, Place
from fedapm.flower.transport.codec import PROTOCOL, Note, Tensors, digest, shapes
from fedapm.flower.transport.version import FRESH, round_of, version_id
from fedapm.runs.files import write_tensors
from fedapm.simulation.engines.base import client_init
from fedapm.simulation.engines.sequential import evaluate_client, load_model, train_client
from fedapm.simulation.problem import Model
from fedapm.simulation.stores.base import ClientState, flatten, restore

HERE = 0
"""Where a node's only client stands in its own problem."""
MODEL = "model"


class MessageHandler:
    """One client on its node."""

    def __init__(
        self, node: Node, data: Loader | None = None, model: Model | None = None, loss: Loss | None = None
    ) -> None:
        self.node, self.loader, self.model, self.loss = node, data, model, loss

    def answer(self, note: Note, tensors: Tensors) -> tuple[Note, Tensors]:
        """The reply to a message; bad input is said in the reply, in one line."""
        # one thread a process, as everywhere: results do not depend on how many cores a node has
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        about = {"protocol": PROTOCOL, "run": note.get("run"), "token": note.get("token")}
        try:
            if note.get("protocol") != PROTOCOL:
                raise FedapmError(
                    f"the server speaks protocol {note.get('protocol')}, this node {PROTOCOL}; use the same version of "
                    "fedapm on both."
                )
            found, vectors = self._hello(note) if "hello" in note else self._round(note, tensors)
        except FedapmError as error:
            return about | {"refused": str(error)}, {}
        return about | found, vectors

    def _hello(self, note: Note) -> tuple[Note, Tensors]:
        clients = [str(client) for client in note["hello"]]
        client = self.node.name(clients)
        _, outline = self._data(Experiment.from_tables(note["settings"]), client, clients.index(client))
        return {"client": client, "data": outline.note()}, {}

    def _data(self, experiment: Experiment, client: str, position: int) -> tuple[ClientData, DataSummary]:
        settings = self.node.data(experiment.data)
        data, federation = own_data(settings, client, position, self.loader, self.node.data_file)
        return data, DataSummary.of(data, federation)

    def _round(self, note: Note, tensors: Tensors) -> tuple[Note, Tensors]:
        client, position = str(note["client"]), int(note["position"])
        # whoever is asked for must be who answers, whatever nodes were changed meanwhile
        asked, own = (position, self.node.partition) if self.node.client is None else (client, self.node.client)
        if own != asked:
            raise FedapmError(f"a message for client {asked!r} reached the node of client {own!r}.")
        experiment = Experiment.from_tables(note["settings"])
        versions = Versions(self.node.state, str(note["run"]), client)
        data, _ = self._data(experiment, client, position)
        place = Place(position, int(note["m"]), int(note["samples"]), int(note["classes"]))
        problem = NodeProblem(experiment, data, place, self.model, self.loss, self.node.device)
        _check_start(problem, client, note["u0"])
        broadcast = State(**restore("down", {n: t.to(problem.device) for n, t in tensors.items()}, note["down"]))
        with versions.locked():
            with collect_messages() as messages:
                about, vectors = _Turn(experiment, problem, versions, client, broadcast).answer(note)
            return about | {"remarks": messages}, vectors


class _Turn:
    """One message's work."""

    def __init__(
        self, experiment: Experiment, problem: NodeProblem, versions: Versions, client: str, broadcast: State
    ) -> None:
        self.problem, self.versions, self.client, self.down = problem, versions, client, broadcast
        self.algorithm = experiment.algorithm

    def answer(self, note: Note) -> tuple[Note, Tensors]:
        accepted, keep = str(note["accepted"]), str(note["keep"])
        about: Note = {"client": self.client}
        base: Version | None = None
        if accepted != FRESH:
            try:
                base = self.versions.load(accepted)
            except FedapmError as error:
                return about | {"lost": accepted, "has": self.versions.ids(), "why": str(error)}, {}
        kept = base.kept if base is not None else client_init(self.problem, self.algorithm)(HERE)
        if note["evaluate"]:
            about["scores"] = {
                view: evaluate_client(self.problem, self.algorithm, HERE, kept, self.down, view)
                for view in self.algorithm.views
            }
            # only who took part in the round just ended has moved away from the shared model in it
            took_part = base is not None and round_of(accepted) == note["round"]
            about["drift"] = self._drift(base.u) if took_part and base is not None else None
        if note["finish"]:
            self._write_models(kept, int(note["round"]))
        vectors: Tensors = {}
        if note["train"] is not None:
            trained, vectors = self._train(int(note["train"]), str(note["token"]), kept)
            about["trained"] = trained
        self.versions.prune(keep, accepted)
        return about, vectors

    def _train(self, round: int, token: str, state: ClientState) -> tuple[Note, Tensors]:
        version = version_id(round, token)
        # the same announcement, heard twice, has the same answer
        if self.versions.has(version):
            with suppress(FedapmError):
                return _reply(round, self.versions.load(version))
        result = train_client(self.problem, self.algorithm, HERE, state, self.down, round)
        if not result.is_finite():
            return {"round": round, "finite": False}, {}
        update = result.update
        saved = Version(version, ClientState(update.state, result.buffers), update.u, update.upload, result.log)
        self.versions.save(saved)
        return _reply(round, saved)

    def _drift(self, u: Vec) -> list[float] | None:
        """How far each shared tensor of the client's copy is from the shared model, where there is one."""
        center = self.down.vectors.get("u")
        known = [n for n in self.problem.drift_names if n in u]
        if center is None or not known:
            return None
        gap = u.only(known) - center.only(known)
        return [t.double().norm().item() for t in gap.values()]

    def _write_models(self, kept: ClientState, round: int) -> None:
        views = self.algorithm.views
        for view in views:
            load_model(self.problem, self.algorithm, HERE, kept, self.down, view)
            module = self.problem.network(HERE).module
            suffix = "" if len(views) == 1 else f"-{view}"
            about = {"client": self.client, "method": self.algorithm.name, "round": round}
            path = self.versions.folder / f"{MODEL}{suffix}.safetensors"
            write_tensors(path, {n: t.detach() for n, t in module.state_dict().items()}, about)


def _reply(round: int, version: Version) -> tuple[Note, Tensors]:
    upload: Upload = version.upload
    vectors, sums = flatten("sums", upload.sums)
    log = [asdict(solved) for solved in version.log]
    return {"round": round, "finite": True, "weight": upload.weight, "sums": sums, "log": log}, vectors


def _check_start(problem: NodeProblem, client: str, expected: Mapping[str, Any]) -> None:
    """Refuse a node whose shared part differs from the others' in a name, a shape or a starting value."""
    check_same_shared(expected["shapes"], shapes(problem.u0), client)
    if digest(problem.u0) != expected["digest"]:
        raise FedapmError(
            f"client {client} starts from other values of the shared parameters than the server; use the same versions "
            "of torch and of the app on both."
        )
