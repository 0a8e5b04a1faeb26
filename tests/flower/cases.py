"""A small federation that can be run both ways: by the sequential engine, and over a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedapm.core.algorithm import State
from fedapm.core.messages import collect_messages
from fedapm.core.record import RoundRecord
from fedapm.core.vec import Vec
from fedapm.data import Dirichlet, Federation
from fedapm.data.sets.digits import federation
from fedapm.experiments import build
from fedapm.flower import client_app
from fedapm.flower.client.versions import Versions
from fedapm.flower.server.checkpoint import Saved, read_checkpoint
from fedapm.flower.server.run import serve
from fedapm.flower.settings import Deployment, deployment
from fedapm.flower.transport.version import FRESH
from fedapm.models import DigitsNet
from fedapm.runs.records import JsonLines, load_run
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.problem import Problem, Weighting
from tests.flower.grid import InProcessGrid
from tests.helpers.running import Picture, play

CLIENTS = ("north", "south", "east", "west", "middle")


def network() -> torch.nn.Module:
    """In double precision, so that sums taken in another order still agree closely."""
    return DigitsNet(width=16, features=8).double()


def clients() -> Federation:
    made = federation(Dirichlet(len(CLIENTS), 1.0, 30), test_fraction=0.2, seed=0)
    return Federation.from_clients(
        {
            name: (c.train.inputs[0][::8].double(), c.train.targets[::8])
            for name, c in zip(CLIENTS, made.clients, strict=True)
        },
        test={
            name: (c.test.inputs[0][::2].double(), c.test.targets[::2])
            for name, c in zip(CLIENTS, made.clients, strict=True)
        },
    )


def tables(method: str = "fedapm", **more: Mapping[str, Any]) -> dict[str, Any]:
    given = {
        "data": {"name": "own"},
        "model": {"preset": "output"},
        "algorithm": {"name": method},
        "solver": {"lr": 0.05, "epochs": 1, "batch_size": 20},
        "engine": {"rounds": 5, "fraction": 0.6, "seed": 3},
        "flower": {"clients": list(CLIENTS), "timeout": 20.0, "retries": 1, "wait": 20.0},
    }
    return {name: {**given.get(name, {}), **more.get(name, {})} for name in (*given, *(set(more) - set(given)))}


@dataclass
class Case:
    """One experiment, its grid and its folder."""

    given: dict[str, Any]
    out: Path
    grid: InProcessGrid
    said: list[str]
    data: Federation
    make: Any = network

    @classmethod
    def of(cls, folder: Path, method: str = "fedapm", make: Any = network, **more: Mapping[str, Any]) -> Case:
        data = clients()
        app = client_app(data=lambda name: data[data.position(name)], model=make)
        nodes = {100 + k: {"client-id": name} for k, name in enumerate(CLIENTS)}
        return cls(tables(method, **more), folder / "run", InProcessGrid(app, folder / "nodes", nodes), [], data, make)

    @property
    def plan(self) -> Deployment:
        return deployment(self.given)

    def serve(self) -> list[RoundRecord]:
        """The whole run over the grid; its records."""
        with collect_messages() as messages:
            try:
                serve(self.grid.link(), self.plan, self.out, self.make)
            finally:
                self.said += messages
        return self.records()

    def records(self) -> list[RoundRecord]:
        return list(JsonLines(self.out / "rounds.jsonl"))

    def events(self) -> list[tuple[int, str, str]]:
        return [(row["round"], row["client"], row["what"]) for row in JsonLines(self.out / "events.jsonl")]

    def saved(self) -> Saved:
        """The newest checkpoint."""
        return read_checkpoint(sorted((self.out / "checkpoints").glob("round-*.safetensors"))[-1])

    def acknowledged(self, saved: Saved | None = None) -> dict[str, State]:
        """Every client's state as far as the server accepted it, read from the nodes' own disks."""
        now = saved or self.saved()
        algorithm = self.plan.experiment.method
        problem = self.problem()
        found = {}
        for k, name in enumerate(CLIENTS):
            version = now.ledger.entry(k).accepted
            versions = Versions(self.grid.state / str(100 + k), now.ledger.run, name)
            fresh = algorithm.client_init(problem.u0, problem.start(k).v0)
            found[name] = versions.load(version).client_state.state if version != FRESH else fresh
        return found

    def problem(self) -> Problem:
        experiment = self.plan.experiment
        return Problem(
            self.data,
            self.make,
            experiment.model.rule,
            adapt=experiment.algorithm.adapt,
            solver=experiment.solver,
            weighting=Weighting(experiment.engine.weights, experiment.engine.units),
            seed=experiment.engine.seed,
            rounds=experiment.engine.rounds,
        )

    def sequential(self, absent: Mapping[int, Sequence[int]] | None = None) -> tuple[Picture, list[RoundRecord]]:
        """The same experiment in one process, where some clients are away in some rounds."""
        problem, experiment = self.problem(), self.plan.experiment
        engine = Partly(problem, experiment.method, absent or {})
        return play(problem, experiment.method, build.schedule(experiment.engine), engine=engine)

    @property
    def complete(self) -> bool:
        return load_run(self.out).complete


class Partly(SequentialEngine):
    """One client after the other, but for those that are away."""

    def __init__(self, problem: Problem, algorithm: Any, absent: Mapping[int, Sequence[int]]) -> None:
        super().__init__(problem, algorithm)
        self.absent = absent

    def _train(self, round, selected, broadcast):
        return super()._train(round, [k for k in selected if k not in self.absent.get(round, ())], broadcast)


def dropped(records: Sequence[RoundRecord]) -> dict[int, list[int]]:
    """Who did not take part in which round, as the records say."""
    return {record["round"]: record["dropped"] for record in records if record["dropped"]}


def same(a: State, b: State) -> bool:
    """Equal to the bit."""
    return a.keys() == b.keys() and all(v.equal(b[k]) if isinstance(v, Vec) else v == b[k] for k, v in a.items())


def gap(a: Vec, b: Vec) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


def changed(case: Case, **more: Mapping[str, Any]) -> Case:
    """The same folders and nodes with other settings."""
    return replace(case, given={name: {**table, **more.get(name, {})} for name, table in case.given.items()})
