"""Sample-level differential privacy at each site: what a client sends says little about any one of its samples.

Every step that a client makes is noised, those on its personal part too: gradients in the shared part depend on the
personal one, so a personal part without noise would carry single samples into what is sent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.solver import SGDConfig
from fedapm.core.task import Task
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.privacy.noise import system_noise
from fedapm.privacy.settings import PrivacySettings
from fedapm.privacy.subsampled import check_installed, subsampled_epsilon
from fedapm.uploads.layer import Layer

STEPS = "private_steps"
"""The number in a client's state that counts its noised steps."""


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
    """A method whose clients count the noised steps that they made."""

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """No step is made yet."""
        return self.method.client_init(u0, v0).replace(**{STEPS: 0.0})

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The method's own, and its steps."""
        update = self.method.client_update(broadcast, _own(state), task)
        return ClientUpdate(update.upload, _counted(update.state, state, task), update.u)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """The method's own, and its steps."""
        return _counted(self.method.personalize(broadcast, _own(state), task, epochs), state, task)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The method's own."""
        return self.method.client_model(broadcast, _own(state), view)


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
        rows = []
        for (client, size), made in zip(sizes.items(), steps, strict=True):
            rate = sampling_rate(size, self.batch_size)
            kind = self.settings.kind
            spent = subsampled_epsilon(rate, self.settings.sigma, int(made), self.settings.failure, kind)
            rows.append({"id": client, "samples": size, "steps": int(made), "epsilon": spent})
        return rows


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
