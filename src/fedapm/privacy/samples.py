"""Sample-level differential privacy at each site: what a client sends says little about any one of its samples.

Every step that a client makes is noised, those on its personal part too: gradients in the shared part depend on the
personal one, so a personal part without noise would carry single samples into what is sent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.batched import NotBatchable
from fedapm.core.solver import SGDConfig, SolveStats
from fedapm.core.task import Epochs, LocalTask, StopRule, Task
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.privacy.noise import system_noise
from fedapm.privacy.settings import PrivacySettings
from fedapm.privacy.subsampled import check_installed, subsampled_epsilon
from fedapm.uploads.layer import Layer

STEPS = "private_steps"
"""The number in a client's state that counts its noised steps."""
MOST_STEPS = 1 << 40
"""More steps than anybody makes."""


@dataclass(frozen=True)
class SampleProtection:
    """Clipped and noised gradients, with randomness of the operating system or of a key."""

    clip: float
    sigma: float
    keyed: bool = False

    @property
    def deviation(self) -> float:
        """σ·C."""
        return self.sigma * self.clip

    def chosen(self, count: int, rate: float, stream: torch.Generator) -> Tensor:
        """Which samples take part in a step."""
        if self.keyed:
            return torch.rand(count, generator=stream, dtype=torch.float64) < rate
        draws = np.frombuffer(os.urandom(8 * count), dtype=np.uint64).astype(np.float64) / 2.0**64
        return torch.from_numpy(draws < rate)

    def noise(self, like: Tensor, stream: torch.Generator) -> Tensor:
        """Normal noise."""
        if self.keyed:
            draws = torch.randn(like.shape, generator=stream, dtype=torch.float64)
            return (self.deviation * draws).to(like.device).to(like)
        return system_noise(Vec({"noise": like}), self.deviation)["noise"]


@dataclass(frozen=True)
class Counting(Layer):
    """A method whose clients count the noised steps that they made, and stop at a budget where there is one."""

    settings: PrivacySettings
    _cost: dict[tuple[int, int | None], int] = field(default_factory=dict, compare=False, repr=False)
    """The steps of a round, or of a closing phase of so many epochs, by the number of a client's samples."""

    @property
    def abstains(self) -> str | None:
        """Clients take no part any more when their budget is spent."""
        if self.settings.epsilon is None:
            return self.method.abstains
        return (
            f"the privacy budget of every client is spent: one more round would exceed ε = {self.settings.epsilon:g} "
            f"at δ = {self.settings.failure:g}"
        )

    def takes_part(self, broadcast: State, state: State, task: Task) -> bool:
        """Whether one more round is within the budget."""

        def rehearse(rehearsal: Task) -> None:
            self.method.client_update(broadcast, _own(state), rehearsal)

        affordable = self._affordable(state, task, None, rehearse)
        return affordable and self.method.takes_part(broadcast, _own(state), task)

    def _affordable(self, state: State, task: Task, epochs: int | None, rehearse: Callable[[Task], Any]) -> bool:
        budget = self.settings.epsilon
        if budget is None:
            return True
        if not isinstance(task, LocalTask):
            raise NotBatchable("what a client can afford is a matter of its own samples")
        size = len(task.train)
        if (size, epochs) not in self._cost:
            rehearsal = Rehearsal(task)
            rehearse(cast(Task, rehearsal))
            self._cost[size, epochs] = rehearsal.steps
        rate = sampling_rate(size, task.solver.batch_size)
        steps = int(state.numbers[STEPS]) + self._cost[size, epochs]
        return steps <= affordable_steps(rate, self.settings.sigma, self.settings.failure, self.settings.kind, budget)

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """No step is made yet."""
        return self.method.client_init(u0, v0).replace(**{STEPS: 0.0})

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The method's own, and its steps."""
        update = self.method.client_update(broadcast, _own(state), task)
        return ClientUpdate(update.upload, _counted(update.state, state, task), update.u)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """The method's own, and its steps; a client without the budget for it keeps what it has."""

        def rehearse(rehearsal: Task) -> None:
            self.method.personalize(broadcast, _own(state), rehearsal, epochs)

        if not self._affordable(state, task, epochs, rehearse):
            return state
        return _counted(self.method.personalize(broadcast, _own(state), task, epochs), state, task)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The method's own."""
        return self.method.client_model(broadcast, _own(state), view)


class Rehearsal:
    """A client's problem that counts the steps a method would make, and looks at no data.

    Args:
        task: The problem itself.
    """

    def __init__(self, task: LocalTask) -> None:
        self.task, self.steps = task, 0
        self.log: list[SolveStats] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def minimize(self, start: Vec, fixed: Vec | None = None, *, stop: StopRule | None = None, **more: Any) -> Vec:
        """Where the search begins, after as many steps as it would take."""
        del fixed, more
        epochs = stop.count if isinstance(stop, Epochs) else self.task.solver.epochs
        if start:
            size = len(self.task.train)
            self.steps += epochs * math.ceil(size / min(self.task.solver.batch_size or size, size))
        return start


@lru_cache(maxsize=1024)
def affordable_steps(rate: float, sigma: float, delta: float, kind: Literal["rdp", "prv"], epsilon: float) -> int:
    """The most noised steps with which a client stays within a budget.

    Args:
        rate: The probability with which a sample takes part in a step.
        sigma: σ.
        delta: δ.
        kind: The accountant.
        epsilon: The budget.
    """
    low, high = 0, 1
    while high < MOST_STEPS and subsampled_epsilon(rate, sigma, high, delta, kind) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        within = subsampled_epsilon(rate, sigma, middle, delta, kind) <= epsilon
        low, high = (middle, high) if within else (low, middle)
    return low


@dataclass(frozen=True)
class SiteSpending:
    """What each client has spent."""

    settings: PrivacySettings
    batch_size: int

    def rows(self, sizes: dict[str, int], steps: Sequence[float]) -> list[dict[str, Any]]:
        """For each client its id, samples, steps and ε.

        Args:
            sizes: The number of training samples of each client, by id.
            steps: The noised steps of each.
        """
        return [
            {"id": client, "samples": size, "steps": int(made), "epsilon": self.epsilon(size, int(made))}
            for (client, size), made in zip(sizes.items(), steps, strict=True)
        ]

    def epsilon(self, size: int, steps: int) -> float:
        """ε of a client.

        Args:
            size: The number of its training samples.
            steps: The noised steps that it made.
        """
        rate = sampling_rate(size, self.batch_size)
        return subsampled_epsilon(rate, self.settings.sigma, steps, self.settings.failure, self.settings.kind)


def sampling_rate(size: int, batch_size: int) -> float:
    """The probability with which a sample takes part in a step."""
    return min(1.0, batch_size / size) if batch_size else 1.0


def protection(settings: PrivacySettings, solver: SGDConfig) -> SampleProtection | None:
    """What is done to gradients of single samples; None where that is nothing.

    Args:
        settings: The table [privacy].
        solver: How clients train.

    Raises:
        FedapmError: If batches are drawn and opacus, which accounts for them, is not installed; or if the solver should
            do to gradients what it does not do to those of single samples.
    """
    if not settings.per_sample:
        return None
    plain = {"clip_norm": (None,), "accumulate": (None, 1), "precision": (None, "float32")}
    for name, values in plain.items():
        if getattr(solver, name) not in values:
            raise FedapmError(
                f'solver.{name} is not for the gradients of single samples, which privacy.level = "sample" adds up; '
                "leave it out."
            )
    if solver.batch_size:
        check_installed()
    return SampleProtection(settings.bound, settings.sigma, settings.noise == "keyed")


def _counted(new: State, old: State, task: Task) -> State:
    return new.replace(**{STEPS: old.numbers[STEPS] + sum(each.steps for each in task.log)})


def _own(state: State) -> State:
    """What the method itself keeps."""
    return State(**{name: value for name, value in state.items() if name != STEPS})
