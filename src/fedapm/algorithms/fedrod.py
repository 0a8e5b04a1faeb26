"""FedRoD: one trunk, a generic head trained class-balanced, and a personal head added to it.

Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedapm.algorithms.averaging import Averaging
from fedapm.algorithms.heads import TwoHeads, cross_entropy, require_classes
from fedapm.core.algorithm import ClientUpdate, State
from fedapm.core.network import OwnLoss
from fedapm.core.split import Split
from fedapm.core.task import Epochs, Task
from fedapm.core.vec import Vec


@dataclass(frozen=True)
class FedRoD(Averaging):
    """(trunk, h) ← SGD on the balanced loss; p_i ← SGD on the loss of h + p_i; trunk and h are averaged."""

    name = "fedrod"
    label = "FedRoD"
    personal_field = "p"
    personal = "an added head p_i"
    sends = "the change of trunk and generic head"
    evaluates = "trunk, generic head and p_i"
    suits = "labels are skewed, and a common model is wanted beside the personal ones"

    def adapt(self, network: nn.Module, split: Split) -> tuple[nn.Module, Split]:
        """Everything is shared but an added head."""
        wide = TwoHeads(network, self.label)
        personal = tuple(n for n, _ in wide.named_parameters() if n.startswith("personal_head."))
        return wide, Split(split.scoped("whole").shared, personal, split.frozen)

    def client_init(self, u0: Vec, v0: Vec) -> State:
        """A client keeps its head."""
        del u0
        return State(p=v0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Both in the same steps: the loss of h + p_i has no gradient in trunk and h."""
        require_classes(task, self.label)
        w = task.minimize(broadcast.u | state.p, loss=self.loss(task))
        u, p = w.only(broadcast.u), w.only(state.p)
        return ClientUpdate(self.upload(u, broadcast.u, task), state.replace(p=p), u)

    def loss(self, task: Task) -> OwnLoss:
        """The two losses, with the class counts of this client."""
        wide = task.network.module
        assert isinstance(wide, TwoHeads)
        return OwnLoss(balanced, task.class_counts(wide.own_head.out_features))

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """p_i ← SGD on the loss of h + p_i; trunk and h are fixed."""
        require_classes(task, self.label)
        p = task.minimize(state.p, fixed=broadcast.u, loss=self.loss(task), stop=Epochs(epochs))
        return state.replace(p=p)

    def client_model(self, broadcast: State, state: State, view: str = "model") -> tuple[Vec, Vec]:
        """The shared network with the client's head beside its own."""
        del view
        return broadcast.u, state.p


def balanced(scores: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """Balanced softmax for the generic head plus cross-entropy for both together; scores are (generic, both)."""
    if scores.dim() == 2:
        return cross_entropy(scores, targets)
    generic, both = scores
    return cross_entropy(generic + counts.to(generic).log(), targets) + cross_entropy(both, targets)
