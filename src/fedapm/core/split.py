"""Split: which parameters of a network are shared (u), personal (v_i) and frozen, by name patterns.

A pattern is a parameter name, the name of a sub-module (all that is below it), or a glob such as
``blocks.*.norm``. Buffers, such as BatchNorm's running statistics, are in none of the three: every
client keeps its own and they are never sent or averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from fedapm.errors import FedapmError, closest, did_you_mean

Preset = Literal["input", "output", "split_input", "lora", "ffa-lora", "dual", "head"]
Scope = Literal["split", "whole", "none"]


@dataclass(frozen=True)
class Split:
    """The parameter names of one network in three blocks."""

    shared: tuple[str, ...]
    personal: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    order: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """All names in the order of the network."""

    def scoped(self, scope: Scope) -> Split:
        """The blocks as a method uses them.

        Args:
            scope: ``split`` keeps the blocks, ``whole`` shares all trained parameters, ``none`` shares nothing.
        """
        if scope == "split":
            return self
        # in the network's own order, so that a vector is the same whichever block it is
        trained_names = {*self.shared, *self.personal}
        trained = tuple(n for n in self.order or self.shared + self.personal if n in trained_names)
        shared, personal = (trained, ()) if scope == "whole" else ((), trained)
        return Split(shared, personal, self.frozen, self.order)


@dataclass(frozen=True)
class SplitRule:
    """How to split a network: by a preset that it declares, or by patterns.

    With only ``personal`` (or only ``shared``), every other trainable parameter is in the other block; with both, they
    must cover all; with neither, everything is shared. Parameters that do not require a gradient are frozen.

    Args:
        preset: The stage of the network that is personal.
        personal: Patterns of the personal parameters.
        shared: Patterns of the shared parameters.
        frozen: Patterns of the parameters that are not trained.
    """

    preset: Preset | None = None
    personal: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    def apply(self, network: nn.Module) -> Split:
        """Split a network; an error names the parameters in question."""
        personal = self.personal
        if self.preset is not None:
            if personal or self.shared:
                raise FedapmError(f"give either the preset {self.preset!r} or patterns for the blocks, not both.")
            personal = stage(network, self.preset)
        parameters = dict(network.named_parameters())
        roles = {"shared": self.shared, "personal": personal, "frozen": self.frozen}
        owner = _assign(roles, list(parameters))
        rest = "personal" if self.shared and not personal else "shared"
        for name, parameter in parameters.items():
            if name in owner:
                continue
            if not parameter.requires_grad:
                owner[name] = "frozen"
            elif self.shared and personal:
                raise FedapmError(
                    f"parameter {name!r} is neither shared nor personal; add it to one of them, or leave "
                    "one of the two out so that it takes the rest."
                )
            else:
                owner[name] = rest
        blocks = {r: tuple(n for n in parameters if owner[n] == r) for r in roles}
        return Split(**blocks, order=tuple(parameters))


def stage(network: nn.Module, name: str) -> tuple[str, ...]:
    """The sub-modules a network names as one of its stages (its class attribute ``stages``).

    A network with adapters says for their presets what is personal (``adapter_stages``), which may be nothing.
    """
    adapters: Mapping[str, Sequence[str]] = getattr(network, "adapter_stages", {})
    if name in adapters:
        return tuple(adapters[name])
    if name in ("lora", "ffa-lora", "dual"):
        raise FedapmError(f"the preset {name!r} is for networks with adapters; set model.lora = {{rank = 8}}.")
    stages: Mapping[str, Sequence[str]] | None = getattr(network, "stages", None)
    kind = type(network).__name__
    if not stages:
        raise FedapmError(
            f"{kind} names no stages, so the preset {name!r} does not apply; give patterns for the "
            "personal parameters instead (personal=[...])."
        )
    if name not in stages:
        raise FedapmError(f"{kind} has no stage {name!r}; {did_you_mean(name, stages)}")
    return tuple(stages[name])


def check_same_shared(reference: Mapping[str, Sequence[int]], other: Mapping[str, Sequence[int]], client: str) -> None:
    """Raise an error if a client's shared parameters differ from the others' in a name or a shape."""
    for name in [*reference, *other]:
        if name in reference and name in other:
            if tuple(reference[name]) != tuple(other[name]):
                raise FedapmError(
                    f"client {client}: shared parameter {name!r} has shape {tuple(other[name])}, other clients "
                    f"have {tuple(reference[name])}; make it personal or give every client the same shape."
                )
            continue
        has, lacks = ("other clients have", "it") if name in reference else ("it has", "the others")
        candidates = other if name in reference else reference
        near = closest(name, candidates, 1)
        hint = f"; the closest name is {near[0]!r}" if near else ""
        raise FedapmError(f"client {client}: {has} a shared parameter {name!r} that {lacks} lack{hint}.")


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a parameter or a module that contains it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*")


def _assign(roles: Mapping[str, Iterable[str]], names: list[str]) -> dict[str, str]:
    owner: dict[str, str] = {}
    pattern_of: dict[str, str] = {}
    for role, patterns in roles.items():
        for pattern in patterns:
            matching = [n for n in names if matches(n, pattern)]
            if not matching:
                near = closest(pattern, names + sorted({n.rsplit(".", 1)[0] for n in names}))
                hint = ", ".join(repr(n) for n in (near or names[:3]))
                raise FedapmError(f"the {role} pattern {pattern!r} matches no parameter; the closest are {hint}.")
            for name in matching:
                if owner.setdefault(name, role) != role:
                    raise FedapmError(
                        f"parameter {name!r} is both {owner[name]} (pattern {pattern_of[name]!r}) and {role} "
                        f"(pattern {pattern!r}); the blocks must not overlap."
                    )
                pattern_of.setdefault(name, pattern)
    return owner
