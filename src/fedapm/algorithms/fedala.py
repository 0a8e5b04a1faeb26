"""FedALA: before training, each client learns how much of the global model to take over, element by element.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated Learning.
AAAI 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Gt, Le
from pydantic import NonNegativeFloat, PositiveInt

from fedapm.algorithms.averaging import Averaging
from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.search_space import choices, int_range, log_range
from fedapm.core.task import Epochs, StopRule, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class FedALA(Averaging):
    """Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i in the top p layers and Θ below; W_i ← clip(W_i − η·∇_W f_i, 0, 1)."""

    name = "fedala"
    label = "FedALA"
    scope = "whole"
    personal_field = "theta"
    personal = "a whole model Θ_i; also kept: the weights W_i"
    sends = "the change of the whole model"
    evaluates = "Θ_i"
    suits = "clients should take from the common model only what helps them"
    search_space = (log_range("algorithm.eta", 0.1, 10.0), int_range("algorithm.p", 1, 3))
    search_grid = (choices("algorithm.eta", 0.1, 0.5, 1.0, 2.0),)

    eta: NonNegativeFloat = 1.0
    """η: step size on the weights W_i."""
    s: Annotated[float, Gt(0), Le(1)] = 0.8
    """s: share of local data the weights are learnt on."""
    p: PositiveInt = 1
    """p: how many layers from the top have weights; lower ones are taken over whole."""
    start_epochs: int = 10
    """Most epochs on W_i when a client first takes part; one epoch after that."""
    tolerance: float = 1e-3
    """The first learning of W_i ends when an epoch changes it by less than this on average."""

    def top(self, u: Vec) -> tuple[str, ...]:
        """The parameters of the top p layers."""
        layers = list(dict.fromkeys(n.rpartition(".")[0] for n in u))[-self.p :]
        return tuple(n for n in u if n.rpartition(".")[0] in layers)

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its model Θ_i, its weights W_i = 1, and whether it has learnt them."""
        del v0
        return State(theta=u0, w=u0.only(self.top(u0)).map(torch.ones_like), learnt=0.0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Aggregate adaptively, then train the whole model."""
        new = self.train(broadcast, state, task)
        return ClientUpdate(self.upload(new.theta, broadcast.u, task), new, new.theta)

    def train(self, broadcast: State, state: State, task: Task, stop: StopRule | None = None) -> State:
        """Θ_i ← SGD on f_i from Θ̂_i."""
        top = self.top(broadcast.u)
        mine, below = state.theta.only(top), broadcast.u.without(top)
        gap = broadcast.u.only(top) - mine
        w = self.weights(state, mine, gap, below, task)
        theta = task.minimize((below | (mine + gap.times(w))).only(broadcast.u), stop=stop)
        return State(theta=theta, w=w, learnt=1.0)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """The client's own step, of which nothing is sent: aggregate adaptively, then train."""
        return self.train(broadcast, state, task, Epochs(epochs))

    def weights(self, state: State, mine: Vec, gap: Vec, below: Vec, task: Task) -> Vec:
        """W_i, learnt by projected gradient steps on a random part of the local data."""

        def step(batch: Any, w: Vec) -> tuple[Vec]:
            slope = task.gradient(mine + gap.times(w), fixed=below, batch=batch).times(gap)
            return ((w - self.eta * slope).map(lambda t: t.clamp(0, 1)),)

        def epoch(w: Vec) -> Vec:
            return task.each_batch(step, w, share=self.s)[0]

        def settled(before: Vec, w: Vec) -> Any:
            return (w - before).map(torch.abs).mean() < self.tolerance

        most = self.start_epochs + (1 - self.start_epochs) * state.learnt
        return task.repeat(epoch, state.w, most, settled)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The client's own model."""
        del broadcast, view
        return state.theta, Vec()
