"""lp-proj: personal models that agree only in a low-dimensional random projection, which is all that is sent.

Lin, Han, Li, Zhang: Personalized Federated Learning towards Communication Efficiency, Robustness and Fairness.
NeurIPS 2022 (its ℓ2 variant).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fedapm.core.algorithm import Aggregate, Algorithm, ClientUpdate, State, Upload
from fedapm.core.random import torch_generator
from fedapm.core.search_space import choices, log_range
from fedapm.core.task import Epochs, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class Projection:
    """P with orthonormal rows and one signed entry in each column, made from a seed: O(d) work, nothing dense."""

    bucket: Tensor
    sign: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Vec, dimension: int, seed: int) -> Projection:
        """Assign coordinates to buckets at random, equally many to each as far as possible."""
        first = next(iter(x.values()))
        stream = torch_generator(seed, "projection", x.width, dimension)
        bucket = torch.randperm(x.width, generator=stream) % dimension
        sign = torch.randint(0, 2, (x.width,), generator=stream) * 2.0 - 1
        scale = torch.bincount(bucket, minlength=dimension).clamp(min=1) ** -0.5
        return cls(bucket.to(first.device), sign.to(first), scale.to(first))

    def __matmul__(self, x: Vec) -> Vec:
        """P x."""
        signed = self.sign * x.flat()
        summed = signed.new_zeros(*signed.shape[:-1], len(self.scale)).index_add_(-1, self.bucket, signed)
        return x.new({"projection": self.scale * summed})

    def lift(self, w: Vec, like: Vec) -> Vec:
        """Pᵀ w."""
        return like.shaped(self.sign * (self.scale * w["projection"])[..., self.bucket])


@dataclass(frozen=True)
class LpProj(Algorithm):
    """x_i ← SGD on f_i(x_i) + λ/2·‖P x_i − w‖²; w ← Σ α_i P x_i / Σ α_i."""

    name = "lp-proj"
    label = "lp-proj"
    scope = "whole"
    cumulative = ()
    personal_field = "x"
    personal = "the whole model x_i"
    sends = "the change of P x_i, d_sub numbers"
    evaluates = "x_i"
    suits = "sending must cost next to nothing"
    search_space = (log_range("algorithm.lam", 0.01, 10.0), choices("algorithm.dimension", 30, 100, 300, 1000))
    search_grid = (choices("algorithm.lam", 0.1, 0.5, 1.0, 5.0),)
    unit_powers = {"algorithm.lam": -1}

    lam: NonNegativeFloat = 1.0
    """λ: how closely the projections are tied."""
    dimension: PositiveInt = 100
    """d_sub: how many numbers are sent."""
    seed: int = 0
    """The projection's seed, the same for everybody."""

    def projection(self, x: Vec) -> Projection:
        """P for models of this shape."""
        return Projection.of(x, min(self.dimension, x.width), self.seed)

    def server_init(self, u0: Vec) -> State:
        """w⁰ = P x⁰."""
        return State(w=self.projection(u0) @ u0)

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its whole model."""
        del v0
        return State(x=u0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Steps on the loss and on the distance between projections."""
        P = self.projection(state.x)
        x = self.descend(state.x, P, broadcast.w, task)
        return ClientUpdate(self.upload(P @ x, broadcast.w, task), state.replace(x=x), x)

    def averaged(self, u0: Vec) -> dict[str, Vec]:
        """α_i·(P x_i − w)."""
        return {"dw": (self.projection(u0) @ u0).zeros()}

    def upload(self, w: Vec, w_bar: Vec, task: Task) -> Upload:
        """α_i·(w_i − w), with w_i = P x_i."""
        return Upload({"dw": task.alpha * (w - w_bar)}, task.alpha, task.alpha)

    def descend(self, x: Vec, P: Projection, w: Vec, task: Task, epochs: int | None = None) -> Vec:
        """SGD on f_i(x) + λ/2·‖P x − w‖²."""

        def step(batch: Any, x: Vec) -> tuple[Vec]:
            pull = self.lam * P.lift(P @ x - w, like=x)
            return (task.minimize(x, linear=pull, batch=batch, stop=Epochs(1)),)

        (x,) = task.each_batch(step, x, epochs=epochs)
        return x

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """The same steps on x_i; its projection is not sent."""
        return state.replace(x=self.descend(state.x, self.projection(state.x), broadcast.w, task, epochs))

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The mean projection of those selected."""
        del m
        return state.replace(w=state.w + total["dw"] / total.weight)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The client's own model."""
        del broadcast, view
        return state.x, Vec()
