"""A node's own account of what the samples of its client have spent in a run.

Every noised step counts that was made for something which was kept or sent: also in replies that were lost, or that the
server did not accept. So the account is the node's, and the state that the server goes on from has no say in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapm.core.algorithm import State
from fedapm.core.solver import SGDConfig
from fedapm.errors import FedapmError
from fedapm.flower.client.node import Node
from fedapm.privacy import STEPS, PrivacySettings, SiteSpending
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import PRIVACY
from fedapm.simulation.stores.rows import sync_folder


class NodeSpending:
    """What one client has spent in one run. The caller has the lock of the client's folder.

    Args:
        folder: The client's folder of this run.
        settings: The run's table [privacy].
        solver: How the client trains.
        samples: The number of its training samples.

    Raises:
        FedapmError: If the account was begun under other settings, for which it would not be right.
    """

    def __init__(self, folder: Path, settings: PrivacySettings, solver: SGDConfig, samples: int) -> None:
        self.path, self.samples = folder / PRIVACY, samples
        self._site = SiteSpending(settings, solver.batch_size)
        self._terms: dict[str, Any] = {
            "samples": samples,
            "batch_size": solver.batch_size,
            "noise_multiplier": settings.sigma,
            "delta": settings.failure,
        }
        before = read_json(self.path) if self.path.is_file() else {}
        for name, value in self._terms.items():
            if before and before.get(name) != value:
                raise FedapmError(
                    f"what its samples have spent in this run was counted with {name} = {before.get(name)}, not "
                    f"{value}; begin a new run."
                )
        self.steps = int(before.get("steps", 0))

    @property
    def epsilon(self) -> float:
        """ε."""
        return self._site.epsilon(self.samples, self.steps)

    def begin(self, state: State) -> State:
        """A state of the client with all steps counted that it has made, whatever state they led to."""
        return state.replace(**{STEPS: float(self.steps)})

    def add(self, steps: int) -> None:
        """Count some steps before anything that came of them is kept or sent."""
        if steps:
            self.steps += steps
            write_json(self.path, self._terms | {"steps": self.steps, "epsilon": self.epsilon})
            sync_folder(self.path.parent)


def check_demands(node: Node, settings: PrivacySettings, samples: int) -> None:
    """Refuse a run that protects samples less than the node demands.

    Args:
        node: The client's node.
        settings: The run's table [privacy].
        samples: The number of the client's training samples.

    Raises:
        FedapmError: If it does.
    """
    most = node.sample_epsilon
    if most is None:
        return
    budget = settings.epsilon if settings.per_sample else None
    if budget is None or budget > most:
        there = "protects no samples" if not settings.per_sample else f"has the budget {budget or 'infinity'}"
        raise FedapmError(f"this node takes part only where samples are protected with ε = {most:g}; the run {there}.")
    if settings.noise == "keyed":
        raise FedapmError("this node demands protection, but the run's noise is that of a key (privacy.noise).")
    if settings.failure * samples > 1:
        raise FedapmError(f"this node demands protection, but δ = {settings.failure:g} is more than 1/{samples}.")


def check_counted(folder: Path, settings: PrivacySettings) -> None:
    """Refuse a message without protection in a run that began with it.

    Args:
        folder: The client's folder of the run.
        settings: The message's table [privacy].
    """
    if (folder / PRIVACY).is_file() and not settings.per_sample:
        raise FedapmError("samples were protected in this run, and now they are not; begin a new run.")
