"""FedCP: a conditional policy splits each sample's features into global and personal information.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy. KDD 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from fedapm.algorithms.averaging import Averaging
from fedapm.algorithms.heads import Conditional, cross_entropy, require_classes
from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.search_space import choices, log_range
from fedapm.core.split import Split
from fedapm.core.task import Epochs, Task
from fedapm.core.vec import Vec

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)


@dataclass(frozen=True)
class FedCP(Averaging):
    """(trunk, policy, p_i) ← SGD on f_i + λ·MMD(features, global features), the global head h frozen."""

    name = "fedcp"
    label = "FedCP"
    personal_field = "p"
    personal = "an added head p_i"
    sends = "the change of trunk, policy and global head"
    evaluates = "trunk, policy, global head and p_i"
    suits = "some samples of a client need common features and some its own"
    search_space = (log_range("algorithm.lam", 0.01, 10.0),)
    search_grid = (choices("algorithm.lam", 0.1, 0.5, 1.0, 5.0),)

    lam: NonNegativeFloat = 1.0
    """λ: how closely features are held to those of the global trunk."""

    def adapt(self, network: nn.Module, split: Split) -> tuple[nn.Module, Split]:
        """Trunk, policy and global head are shared, a second head is personal, the anchor is frozen."""
        wide = Conditional(network, self.label)
        names = [n for n, _ in wide.named_parameters()]
        policy, personal, anchor = (
            tuple(n for n in names if n.startswith(f"{part}.")) for part in ("policy", "personal_head", "anchor")
        )
        return wide, Split(split.scoped("whole").shared + policy, personal, split.frozen + anchor)

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its head."""
        del u0
        return State(p=v0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Train all but the global head; send in its place the middle between it and the personal one."""
        require_classes(task, self.label)
        wide = task.network.module
        assert isinstance(wide, Conditional)
        names = wide.head_parameters()
        trained = broadcast.u.without(names)
        w = task.minimize(trained | state.p, fixed=broadcast.u.only(names) | self.anchor(broadcast.u), loss=self.loss)
        u, p = w.only(trained), w.only(state.p)
        mine = p.new({n: p[n.replace(wide.head_name, "personal_head", 1)] for n in names})
        sent = (u | 0.5 * (mine + broadcast.u.only(names))).only(broadcast.u)
        return ClientUpdate(self.upload(sent, broadcast.u, task), state.replace(p=p), sent)

    def anchor(self, u: Vec) -> Vec:
        """The global network as it was broadcast, for the frozen copy."""
        return Vec({f"anchor.{n}": t for n, t in u.items() if not n.startswith("policy.")})

    def loss(self, outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        """Cross-entropy plus λ·MMD²."""
        scores, features, anchored = outputs
        return cross_entropy(scores, targets) + self.lam * discrepancy(features, anchored)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """p_i ← SGD on f_i; trunk, policy and h are fixed, so that the features are the global ones."""
        require_classes(task, self.label)
        fixed = broadcast.u | self.anchor(broadcast.u)
        return state.replace(p=task.minimize(state.p, fixed=fixed, loss=self.loss, stop=Epochs(epochs)))

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The shared trunk, policy and head with the client's head."""
        del view
        return broadcast.u | self.anchor(broadcast.u), state.p


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two samples under a sum of Gaussian kernels."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(-1)
        return torch.stack([torch.exp(-squares / (2 * width)).mean() for width in BANDWIDTHS]).sum()

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)
