"""A classifier split into trunk and head, for methods that add something between or beside them."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from fedapm.core.task import Task
from fedapm.errors import FedapmError


class Headed(nn.Module):
    """A network whose trunk and head are called separately; its parameters keep their names.

    The network names its head as a stage: a fully connected layer, directly in the network, applied last.
    """

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        named = tuple(getattr(network, "stages", {}).get("head", ()))
        head = getattr(network, named[0], None) if len(named) == 1 else None
        if not isinstance(head, nn.Linear):
            raise FedapmError(
                f"{method} needs a network that names its head: {type(network).__name__} should have a class attribute "
                "stages with an entry such as {'head': ('fc',)}, where fc is its last layer, an nn.Linear."
            )
        self.head_name = named[0]
        for name, child in network.named_children():
            self.add_module(name, child)
        for name, parameter in network.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in network.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        trunk = network
        setattr(trunk, self.head_name, nn.Identity())
        # not a registered module, so that every parameter has only one name
        object.__setattr__(self, "_trunk", trunk)

    @property
    def own_head(self) -> nn.Linear:
        """The network's own head."""
        head = self._modules[self.head_name]
        assert isinstance(head, nn.Linear)
        return head

    def features(self, *inputs: Tensor) -> Tensor:
        """The output of the trunk."""
        features: Tensor = self.__dict__["_trunk"](*inputs)
        return features

    def head_parameters(self) -> tuple[str, ...]:
        """The names of the head's parameters."""
        return tuple(n for n, _ in self.named_parameters() if n.startswith(f"{self.head_name}."))

    def train(self, mode: bool = True) -> Headed:
        """Also set the mode of the trunk, which is no registered module."""
        super().train(mode)
        if "_trunk" in self.__dict__:
            self.__dict__["_trunk"].training = mode
        return self


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean of −log of the right class's probability, of operations that torch maps over clients by itself."""
    return -torch.log_softmax(scores, -1).gather(-1, targets.unsqueeze(-1)).mean()


def require_classes(task: Task, method: str) -> None:
    """Refuse targets that are not classes, for methods whose losses are about classes."""
    if not task.classified:
        raise FedapmError(f"{method} is a method for classification, but the targets are quantities.")


class TwoHeads(Headed):
    """FedRoD's network: the generic head, and a personal head added to it."""

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__(network, method)
        self.personal_head = deepcopy(self.own_head)
        for parameter in self.personal_head.parameters():
            nn.init.zeros_(parameter)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Both heads together; in training also the generic one alone, as (generic, both)."""
        features = self.features(*inputs)
        generic = self.own_head(features)
        # detached, so that the personal head's loss has no gradient in the shared part
        both: Tensor = generic.detach() + self.personal_head(features.detach())
        return torch.stack([generic, both]) if self.training else both


class Conditional(Headed):
    """FedCP's network: a policy splits each feature into global and personal information, each with its own head."""

    def __init__(self, network: nn.Module, method: str) -> None:
        anchor = Headed(deepcopy(network), method)
        super().__init__(network, method)
        width = self.own_head.in_features
        self.personal_head = deepcopy(self.own_head)
        policy = nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU())
        self.policy = policy.to(self.own_head.weight)
        self.anchor = anchor.requires_grad_(False)

    def shares(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Of each feature the personal and the global share; they sum to one."""
        difference = (self.personal_head.weight - self.own_head.weight).detach().abs().sum(0)
        context = nn.functional.normalize(difference, dim=0)
        split = torch.softmax(self.policy(features * context).unflatten(-1, (-1, 2)), dim=-1)
        return split[..., 0], split[..., 1]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Class scores; in training also the features and those of the frozen global trunk."""
        features = self.features(*inputs)
        personal, shared = self.shares(features)
        scores: Tensor = self.personal_head(features * personal) + self.own_head(features * shared)
        if not self.training:
            return scores
        with torch.no_grad():
            return scores, features, self.anchor.features(*inputs)
