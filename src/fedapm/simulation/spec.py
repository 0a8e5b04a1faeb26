"""RunSpec: a run that is ready to start."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedapm.core.algorithm import Algorithm
from fedapm.simulation.engines import auto
from fedapm.simulation.loop import Callback, Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores import StoreKind
from fedapm.simulation.workers import PATIENCE
from fedapm.version import __version__

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RunSpec:
    """A run that is ready to start."""

    problem: Problem
    algorithm: Algorithm
    schedule: Schedule
    settings: Tables
    """What is written to the run folder's config.toml."""
    checkpoint_every: int = 10
    save_models: bool = True
    engine: auto.EngineName = "auto"
    workers: int | None = None
    store: StoreKind = "auto"
    stuck_after: float = PATIENCE
    ray_address: str | None = None

    def open_engine(self, rows: Path | None) -> auto.EngineChoice:
        """The engine that runs it, with an empty store.

        Args:
            rows: The folder for clients' states, where they are kept on disk; a temporary one if not given.
        """
        cohort = self.schedule.sampling.draw(len(self.problem), self.problem.seed, 1) or [0]
        choice = auto.choose_engine(
            self.engine, self.problem, self.algorithm, cohort, self.workers, self.stuck_after, self.ray_address
        )
        most = self.schedule.rounds * self.schedule.sampling.size(len(self.problem))
        choice.engine.open_store(self.store, rows, most)
        return choice

    def identity(self) -> dict[str, Any]:
        """What run.json says of a run that can be resumed: beside everything else, which data and network it has."""
        digests = {"data": self.problem.federation.digest(), "network": self.problem.network_digest()}
        return self.info() | {"digests": digests}

    def info(self) -> dict[str, Any]:
        """What run.json says."""
        network, transform = self.problem.network(0), self.problem.federation.transform
        problem = self.problem
        personal = [problem.start(k).v0.numel for k in (range(len(problem)) if problem.per_client else range(1))]
        return {
            "fedapm": __version__,
            "method": self.algorithm.name,
            "label": self.algorithm.label,
            "seed": self.problem.seed,
            "views": list(self.algorithm.views),
            "metrics": [metric.describe() for metric in self.problem.metrics],
            "rounds": self.schedule.rounds,
            "data": self.problem.federation.name,
            "classes": self.problem.federation.classes,
            "seen_classes": self.problem.federation.seen_classes,
            "class_names": list(self.problem.federation.class_names),
            "labels": list(self.problem.federation.labels),
            "input_shapes": [list(shape) for shape in self.problem.federation.shapes],
            "input_types": [str(t.dtype).removeprefix("torch.") for t in self.problem.federation[0].train.inputs],
            "transform": transform.describe() if transform is not None else None,
            "model": type(network.module).__name__,
            **self._population(),
            "clients": self._clients,
            "parameters": {
                "shared": self.problem.u0.numel,
                "personal": personal if len(set(personal)) > 1 else personal[:1],
                "frozen": network.read(network.split.frozen).numel,
            },
            "split": {
                "shared": list(network.split.shared),
                "personal": list(network.split.personal),
                "frozen": list(network.split.frozen),
            },
            "environment": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "platform": platform.system(),
            },
        }

    @cached_property
    def _clients(self) -> list[dict[str, Any]]:
        """The clients that scores are of."""
        rows = []
        for position in self.problem.evaluated:
            client = self.problem.federation[position]
            rows.append({"id": client.id, "train": len(client.train), "test": len(client.test)})
            rows[-1] |= {"classes": client.classes, **({"position": position} if self._population() else {})}
        return rows

    def _population(self) -> dict[str, Any]:
        """Where only some of the clients are evaluated: how many there are, and the mean of all in batches."""
        if len(self.problem.evaluated) == len(self.problem):
            return {}
        return {"population": len(self.problem), "mean_batches": self.problem.mean_batches}


CallbackFactory = Callable[[RunSpec, Path | None, int], Callback]
"""Makes a callback from a run's spec, its folder and the last round that is there already (-1: none)."""
