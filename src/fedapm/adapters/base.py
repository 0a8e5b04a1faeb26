"""AdaptedNetwork: a network whose base is frozen, held once in memory, and left out of what is saved."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.errors import FedapmError

_BASES: dict[tuple[str, torch.Size], list[weakref.ref[nn.Parameter]]] = {}
"""The frozen parameters in this process, by name and shape."""


class AdaptedNetwork(nn.Module):
    """What is mixed into a network's own class when it gets adapters.

    Copies of it share the base. Its state dict has adapters and head only. The base stays in evaluation mode: it has no
    dropout, and its running statistics do not move.
    """

    adapters: tuple[str, ...]
    """The names of the adapters, in the order in which they are added up."""
    adapter_stages: Mapping[str, Sequence[str]]
    """For each preset, the patterns of what is personal."""
    head_names: tuple[str, ...]
    """The sub-modules that are trained whole."""
    targets: tuple[str, ...]
    """The layers that have adapters."""
    base_parameters: frozenset[str]
    """The names of the parameters that are frozen and the same for everybody."""
    fixed_buffers: frozenset[str]
    """The names of the buffers that never change."""
    feature_memory: int
    """Bytes of memory for features of the frozen layers."""

    def train(self, mode: bool = True) -> AdaptedNetwork:
        """Set the mode of head and adapters; the base stays in evaluation mode."""
        super().train(mode)
        for name, part in self.named_modules():
            if name and not any(name == head or name.startswith(f"{head}.") for head in self.head_names):
                part.training = False
        return self

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]  # as torch calls it
        """Adapters and head."""
        whole = super().state_dict(*args, **options)
        return {n: t for n, t in whole.items() if n not in self.base_parameters and n not in self.fixed_buffers}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Put adapters and head in place."""
        own = self.state_dict()
        if strict and (different := sorted(own.keys() ^ state_dict.keys())):
            raise FedapmError(f"{different[0]!r} is in one of network and state dict alone.")
        return super().load_state_dict(state_dict, strict=False, assign=assign)

    def base_size(self) -> int:
        """The bytes of the base."""
        return sum(p.numel() * p.element_size() for n, p in self.named_parameters() if n in self.base_parameters)

    @torch.no_grad()
    def merged(self) -> dict[str, Tensor]:
        """The state dict of the network without adapters that computes the same: W + Σ (α/r)·B·A for each W."""
        state = {n.replace(".base_layer.", "."): t.clone() for n, t in nn.Module.state_dict(self).items()}
        state = {n: t for n, t in state.items() if ".lora_" not in n}
        for target in self.targets:
            layer: Any = self.get_submodule(target)
            for name in self.adapters:
                state[f"{target}.weight"] += layer.get_delta_weight(name)
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> AdaptedNetwork:
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            if name in self.base_parameters or name in self.fixed_buffers:
                memo[id(tensor)] = tensor
        copy = type(self).__new__(type(self))
        memo[id(self)] = copy
        copy.__dict__ = {key: deepcopy(value, memo) for key, value in self.__dict__.items()}
        return copy


def as_adapted(network: nn.Module) -> AdaptedNetwork:
    """The same network, which also is an :class:`AdaptedNetwork`; its class keeps its name."""
    kind = type(network)
    network.__class__ = type(kind.__name__, (AdaptedNetwork, kind), {"__module__": kind.__module__})
    assert isinstance(network, AdaptedNetwork)
    return network


def share_base(network: AdaptedNetwork) -> None:
    """Let a network use the base that another one in this process has already, where all of its numbers are equal."""
    for name in network.base_parameters:
        path, _, last = name.rpartition(".")
        owner, own = network.get_submodule(path), network.get_parameter(name)
        known = _BASES.setdefault((name, own.shape), [])
        known[:] = [ref for ref in known if ref() is not None]
        for ref in known:
            there = ref()
            if there is not None and there.device == own.device and torch.equal(there, own):
                setattr(owner, last, there.requires_grad_(False))
                break
        else:
            known.append(weakref.ref(own))
