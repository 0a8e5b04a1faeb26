"""The server's side of a run on Flower, from finding the nodes to the last round."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import cast

from fedapm.core.network import Loss
from fedapm.core.record import RoundRecord
from fedapm.errors import FedapmError, in_words
from fedapm.experiments import build
from fedapm.flower.problem import DataSummary, server_problem, upload_form
from fedapm.flower.server.checkpoint import SaveBeforeEvaluation, Saved, ServerCheckpoints
from fedapm.flower.server.contributions import Contributions
from fedapm.flower.server.engine import FlowerEngine
from fedapm.flower.server.exchange import RoundExchange
from fedapm.flower.server.ledger import Ledger
from fedapm.flower.server.log import RoundLog
from fedapm.flower.server.node_registry import NodeRegistry
from fedapm.flower.server.readmission import requested
from fedapm.flower.server.releases import Releases
from fedapm.flower.server.replies import ReplyForm
from fedapm.flower.settings import Deployment
from fedapm.flower.text import few
from fedapm.flower.transport import codec
from fedapm.flower.transport.keys import read_registry
from fedapm.flower.transport.traffic import MessageLog
from fedapm.flower.transport.transport import Transport
from fedapm.privacy import Private
from fedapm.runs.config import changed_settings, read_config, write_config
from fedapm.runs.files import remove_leftovers, write_json
from fedapm.runs.folder import check_settings, clear_beginning, is_nothing_yet, locked, rewind
from fedapm.runs.layout import (
    CHECKPOINTS,
    CONFIG,
    CONTRIBUTIONS,
    CORRECTIONS,
    ENGINE,
    EVENTS,
    INFO,
    MESSAGES,
    PRIVACY,
    ROUNDS,
    TIMINGS,
)
from fedapm.runs.records import JsonLines, is_run, load_run
from fedapm.runs.schema import EngineInfo, read
from fedapm.simulation.callbacks import RecordWriter
from fedapm.simulation.engines.base import Resumed
from fedapm.simulation.loop import Callback, Loop
from fedapm.simulation.problem import Model, Problem
from fedapm.simulation.spec import RunSpec
from fedapm.uploads import layer_of

logger = logging.getLogger(__name__)
FILES = (ROUNDS, TIMINGS, MESSAGES)
"""Files with one line per round, cut back to the checkpoint when a run is resumed."""


def serve(
    transport: Transport, deployment: Deployment, out: Path, model: Model | None = None, loss: Loss | None = None
) -> None:
    """Run an experiment in a folder; an unfinished run is resumed, a complete one is left alone."""
    try:
        with locked(out, "server", "stop its run first (flwr stop)"):
            if _begin(out, deployment):
                Server(transport, deployment, out, model, loss).run()
    except (OSError, MemoryError) as error:
        # one line, which `fedapm flower run` and `flwr log` show
        raise FedapmError(f"{in_words(error)} The same command goes on from the last checkpoint.") from error


def _begin(out: Path, deployment: Deployment) -> bool:
    """Check and clear a folder; whether there is anything left to run in it."""
    if is_nothing_yet(out):
        clear_beginning(out)
        return True
    if not is_run(out):
        raise FedapmError(f"{out} is not empty; choose another folder.")
    _check_same(out, deployment)
    there, experiment = load_run(out), deployment.experiment
    same = not changed_settings(read_config(out), experiment.tables())
    if there.complete and same and len(there.rounds) > experiment.engine.rounds:
        logger.info("%s is complete already.", out)
        return False
    remove_leftovers(out)
    return True


class Server:
    """The server process of a run."""

    def __init__(
        self, transport: Transport, deployment: Deployment, out: Path, model: Model | None, loss: Loss | None
    ) -> None:
        self.transport, self.deployment, self.out = transport, deployment, out
        self.model, self.loss = model, loss
        self.experiment, self.flower = deployment.experiment, deployment.flower
        transport.at_once = self.flower.at_once
        self.events = JsonLines(out / EVENTS)
        names = self.experiment.algorithm.cumulative
        private = layer_of(self.experiment.method, Private) is not None
        # of masked messages only the sum is known, and what noise hides in a sum cannot be taken back out of it
        kept = bool(names) and self.flower.keep_contributions and not self.experiment.upload.mask and not private
        self.contributions = Contributions(out / CONTRIBUTIONS, names or ()) if kept else None
        told = tuple(self.experiment.method.told) if self.experiment.method.screens else ()
        self.corrections = Contributions(out / CORRECTIONS, told) if told else None
        self.checkpoints = ServerCheckpoints(self.contributions, self.corrections)
        self.releases = Releases(out) if private else None

    def run(self) -> None:
        """Find the nodes and run to the last round."""
        saved = self.checkpoints.load(self.out / CHECKPOINTS) if is_run(self.out) else None
        run = saved.ledger.run if saved is not None else uuid.uuid4().hex
        registry = NodeRegistry(self.deployment, run, self._keys(saved))
        registry.call(self.transport, self.flower.wait, lambda called: not called.absent)
        data_summaries = self._population(registry, saved)
        problem = server_problem(self.experiment, data_summaries, self.model, self.loss)
        ledger = saved.ledger if saved is not None else Ledger(run, data_summaries, codec.digest(problem.u0))
        ledger.keys = registry.keys
        if ledger.start != codec.digest(problem.u0):
            raise FedapmError(
                f"the shared parameters start from other values than when {self.out} began; go on with the same "
                "versions of torch and of the app."
            )
        engine = self._engine(problem, ledger, registry)
        schedule = build.schedule(self.experiment.engine, self.experiment.privacy)
        self._check_released(problem, saved)
        spec = RunSpec(problem, self.experiment.method, schedule, self.experiment.tables())
        writer = self._begin_folder(engine, spec)
        callbacks: list[Callback] = [
            SaveBeforeEvaluation(engine, self.out / CHECKPOINTS),
            writer,
            MessageLog(self.out, self.transport.traffic),
            RoundLog(schedule.rounds),
        ]
        loop = Loop(problem, self.experiment.method, schedule, engine, callbacks)
        if saved is None:
            self._clear_lines()
        resumed = self._resume(loop) if saved is not None else None
        records = cast(list[RoundRecord], list(JsonLines(self.out / ROUNDS)))
        state = loop.run(resumed, records)
        self._write_spending(engine, state.round)
        writer.finish(state, "complete")

    def _check_released(self, problem: Problem, saved: Saved | None) -> None:
        """Refuse to noise a sum again of which a noised version was sent out."""
        if self.releases is not None:
            method = self.experiment.method
            server = saved.state.server if saved is not None else method.server_init(problem.u0)
            self.releases.check(saved.state.round if saved is not None else 0, method.broadcast(server))

    def _write_spending(self, engine: FlowerEngine, round: int) -> None:
        """What those clients have spent whose nodes told it."""
        ids, summaries = engine.ledger.ids, engine.ledger.data_summaries
        rows = [
            {"id": ids[k], "samples": summaries[ids[k]].train, "steps": told.steps, "epsilon": told.epsilon}
            for k, told in sorted(engine.spending.items())
        ]
        if rows:
            write_json(self.out / PRIVACY, {"round": round, "clients": rows})

    def _keys(self, saved: Saved | None) -> dict[str, str]:
        """The keys of clients that are known before any node has reported."""
        known = dict(saved.ledger.keys) if saved is not None else {}
        if self.flower.registry is None:
            return known
        return read_registry(Path(self.flower.registry), self.deployment.clients)

    def _population(self, roll: NodeRegistry, saved: Saved | None) -> dict[str, DataSummary]:
        if saved is None:
            if roll.absent:
                raise FedapmError(
                    f"{few(roll.absent)} did not show up within {self.flower.wait:g} s (flower.wait); start their "
                    "nodes, and see the SuperNodes' logs."
                )
            data_summaries = {client: roll.data_summaries[k] for k, client in enumerate(roll.ids)}
            _check_alike(data_summaries)
            return data_summaries
        if not roll.nodes:
            raise FedapmError(f"no client is there after {self.flower.wait:g} s (flower.wait); start their nodes.")
        for k, data_summary in roll.data_summaries.items():
            if data_summary != saved.ledger.data_summaries[roll.ids[k]]:
                what = "its data has another size or shape than when the run began"
                self._event(saved.state.round, roll.ids[k], what)
        return saved.ledger.data_summaries

    def _engine(self, problem: Problem, ledger: Ledger, registry: NodeRegistry) -> FlowerEngine:
        classified = next(iter(ledger.data_summaries.values())).classified
        form = ReplyForm(
            upload_form(problem, self.experiment),
            self.experiment.algorithm.views,
            [metric for metric in problem.metrics if metric.applies(classified)],
            len(problem.drift_names),
        )
        return FlowerEngine(
            RoundExchange(self.transport, registry, self.flower, self._event, form.limit),
            self.deployment,
            problem,
            ledger,
            self.contributions,
            self.checkpoints,
            lambda client, version: requested(self.out, ledger.ids[client], version),
            self._event,
            form,
            self.releases,
        )

    def _begin_folder(self, engine: FlowerEngine, spec: RunSpec) -> RecordWriter:
        is_new, ledger = not is_run(self.out), engine.ledger
        why = f"{len(ledger)} clients on nodes of their own"
        notes = {"engine": engine.name, "why": why, "run": ledger.run, "flower": self.deployment.to_json()}
        clients = [
            {"id": client, "train": o.train, "test": o.test, "classes": o.different}
            for client, o in ledger.data_summaries.items()
        ]
        info = spec.info() | {"clients": clients}
        # the server has placeholders in place of data
        del info["seen_classes"]
        # run.json first: beside it, the rest is known to be the beginning of a run
        writer = RecordWriter(self.out, info)
        if is_new:
            write_config(self.out, spec.settings)
        write_json(self.out / ENGINE, notes)
        return writer

    def _clear_lines(self) -> None:
        # a run that was killed before its first checkpoint may have left lines behind
        rewind(self.out, -1, FILES)

    def _resume(self, loop: Loop) -> Resumed:
        resumed = loop.engine.load(self.out / CHECKPOINTS, loop.state)
        assert resumed is not None
        round = resumed.state.round
        written = [row["round"] for row in rewind(self.out, round, FILES)]
        if written not in ([*range(round + 1)], [*range(round)]):
            raise FedapmError(
                f"{self.out / ROUNDS} lacks rounds that the checkpoint has; start again in another folder."
            )
        write_config(self.out, self.experiment.tables())
        logger.info("going on after round %d of %d", round, loop.schedule.rounds)
        return resumed if len(written) == round else Resumed(resumed.state)

    def _event(self, round: int, client: str, what: str) -> None:
        self.events.append({"round": round, "client": client, "what": what})
        logger.info("round %d: %s%s", round, f"client {client}: " if client else "", what)


def _check_same(out: Path, deployment: Deployment) -> None:
    """Refuse to resume a run with other settings, other clients or another engine."""
    notes = read(EngineInfo, out / ENGINE) if (out / ENGINE).is_file() else {}
    if notes.get("engine") != FlowerEngine.name or not (out / CONFIG).is_file():
        raise FedapmError(f"{out} holds a run that is not one on Flower ({INFO}); choose another folder.")
    # part of a contribution could not be withdrawn
    fixed = ("clients", "keep_contributions")
    before, now = notes.get("flower", {}), deployment.to_json()
    also = [f"flower.{name}" for name in fixed if before.get(name) != now[name]]
    advice = "use them, or another folder"
    check_settings(out, deployment.experiment.tables(), advice, more_rounds=True, also_changed=also)


def _check_alike(data_summaries: dict[str, DataSummary]) -> None:
    """Refuse clients whose data differ in shape or type."""
    (first, expected), *others = data_summaries.items()
    for client, data_summary in others:
        if (data_summary.inputs, data_summary.target) != (expected.inputs, expected.target):
            raise FedapmError(
                f"client {client} has inputs {data_summary.inputs} and targets {data_summary.target}, client {first} "
                f"has {expected.inputs} and {expected.target}; give all clients data of the same form."
            )
