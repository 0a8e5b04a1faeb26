"""Candidates: the ways to split a network that are worth trying, read off the network itself.

Layers are counted in the order in which the network declares them. A normalization layer goes with the layer before it.
"""

from __future__ import annotations

import glob
import itertools
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from fedapm.core.split import SplitRule, matches, stage
from fedapm.errors import FedapmError

MOST = 12
"""Candidates of one network, so that a deep one can be searched too."""
NOTHING = "nothing personal: one model for all"
ONLY_DIFFERENT = "nothing personal but what differs between clients"
EVERYTHING = "everything personal: local training"
COUNTS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
SHOWN = 2
"""Layers that a name lists one by one."""

Names = frozenset[str]


@dataclass(frozen=True)
class SplitCandidate:
    """One way to split a network: patterns of what is personal, or of what is shared where clients' networks differ."""

    name: str
    """What it is, in a few words."""
    personal: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    share: float = 0.0
    """The share of all trained parameters that is personal; the mean over the networks where they differ."""


@dataclass(frozen=True)
class Layer:
    """A layer with the normalization that follows it."""

    name: str
    parameters: list[str] = field(default_factory=list)


def split_candidates(networks: Sequence[nn.Module], frozen: Sequence[str] = ()) -> tuple[SplitCandidate, ...]:
    """The splits to try, from the fewest personal parameters to the most; never more than :data:`MOST`.

    Args:
        networks: Every network that clients have; one, if they all have the same.
        frozen: Patterns of parameters that are not trained. Candidates leave them alone.

    Raises:
        FedapmError: Where nothing is trained, or clients have nothing in common that could be shared.
    """
    first = networks[0]
    trained = [SplitRule(frozen=tuple(frozen)).apply(network).shared for network in networks]
    common = _common(networks, trained)
    if not common:
        raise FedapmError(
            "the network has no parameter to train."
            if not any(trained)
            else "the clients' networks have no trained parameter of one name and shape in common, so nothing can be "
            'shared and there is no split to search; train them with algorithm="local".'
        )
    universe = list(dict.fromkeys(name for network in networks for name, _ in network.named_parameters()))
    differ = any(set(names) != set(common) for names in trained)
    sizes = [{name: p.numel() for name, p in network.named_parameters()} for network in networks]

    def candidate(name: str, personal: Names) -> SplitCandidate:
        shared = [n for n in common if n not in personal]
        share = statistics.fmean(
            1 - sum(size[n] for n in shared) / sum(size[n] for n in names)
            for size, names in zip(sizes, trained, strict=True)
        )
        if differ and shared:
            # clients may lack a personal parameter of others, but all have what is shared
            return SplitCandidate(name, shared=patterns(shared, universe), share=share)
        return SplitCandidate(name, personal=_personal_patterns(personal, universe), share=share)

    named = _named_sets(first, common)
    made = [candidate(name, personal) for personal, name in named.items()]
    nothing = candidate(ONLY_DIFFERENT if differ else NOTHING, frozenset())
    # "*" would also take what is frozen, and other patterns need not match in every network
    everything = not differ or set(universe) == {name for names in trained for name in names}
    last = [SplitCandidate(EVERYTHING, _everything(common, universe, differ), share=1.0)] if everything else []
    return (nothing, *sorted(made, key=lambda c: c.share), *last)


def patterns(names: Collection[str], universe: Sequence[str]) -> tuple[str, ...]:
    """The shortest patterns that match these parameters and no other: whole modules where all of one is meant.

    Args:
        names: The parameters.
        universe: All parameters there are.
    """
    wanted, found = {*names}, list[str]()
    for name in universe:
        if name not in wanted or any(matches(name, pattern) for pattern in found):
            continue
        parts = name.split(".")
        prefixes = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        found.append(glob.escape(next(prefix for prefix in prefixes if _below(prefix, universe) <= wanted)))
    return tuple(found)


def _below(prefix: str, universe: Iterable[str]) -> set[str]:
    return {name for name in universe if name == prefix or name.startswith(f"{prefix}.")}


def _personal_patterns(names: Names, universe: Sequence[str]) -> tuple[str, ...]:
    for pattern in ("*bias*", "*norm*"):
        if names and names == {name for name in universe if matches(name, pattern)}:
            return (pattern,)
    return patterns(names, universe)


def _everything(common: Sequence[str], universe: Sequence[str], differ: bool) -> tuple[str, ...]:
    return ("*",) if differ or len(common) == len(universe) else patterns(common, universe)


def _common(networks: Sequence[nn.Module], trained: Sequence[Sequence[str]]) -> list[str]:
    """The trained parameters that every client has, in one shape; in the first network's order."""
    shapes = [{name: p.shape for name, p in network.named_parameters()} for network in networks]
    return [
        name
        for name in trained[0]
        if all(name in names for names in trained) and len({shape[name] for shape in shapes}) == 1
    ]


def _named_sets(network: nn.Module, names: Sequence[str]) -> dict[Names, str]:
    """The personal part of each candidate between nothing and everything, with its name."""
    layers = _layers(network, names)
    cuts = {
        frozenset(name for layer in part for name in layer.parameters): _cut_name(side, part)
        for size in range(1, len(layers))
        for side, part in (("last", layers[-size:]), ("first", layers[:size]))
    }
    always: dict[Names, str] = {}

    def add(personal: Iterable[str], name: str) -> None:
        members = frozenset(personal)
        if members and len(members) < len(names):
            always.setdefault(members, f"{cuts[members]}, {name}" if members in cuts else name)

    for name in getattr(network, "stages", None) or {}:
        parts = stage(network, name)
        add((n for n in names if any(matches(n, part) for part in parts)), f"stage {name}")
    add((n for n in names if _is_norm(network, n)), "normalization")
    add((n for n in names if _is_bias(n)), "biases")
    always = dict(itertools.islice(always.items(), MOST - 2))
    rest = {members: name for members, name in cuts.items() if members not in always}
    return always | _spread(rest, MOST - 2 - len(always))


def _spread(cuts: Mapping[Names, str], room: int) -> dict[Names, str]:
    """As many cuts as there is room for, front and back, closer together near the ends of the network."""
    if len(cuts) <= room:
        return dict(cuts)
    chosen: dict[Names, str] = {}
    for side, places in (("last", (room + 1) // 2), ("first", room // 2)):
        own = [(members, name) for members, name in cuts.items() if name.startswith(side)]
        if own and places:
            chosen |= dict(own[k] for k in {round(step) - 1 for step in np.geomspace(1, len(own), places).tolist()})
    return chosen


def _layers(network: nn.Module, names: Sequence[str]) -> list[Layer]:
    """The modules that own parameters, in order; a parameter of the network itself is a layer of its own."""
    layers: list[Layer] = []
    waiting: list[str] = []
    for name in names:
        owner = name.rpartition(".")[0] or name
        if _is_norm(network, name):
            (layers[-1].parameters if layers else waiting).append(name)
            continue
        known = next((layer for layer in layers if layer.name == owner), None)
        if known is None:
            known = Layer(owner, waiting)
            layers.append(known)
            waiting = []
        known.parameters.append(name)
    return layers


def _is_norm(network: nn.Module, name: str) -> bool:
    """Whether a parameter belongs to a normalization layer, as torch and most others name their classes."""
    owner = name.rpartition(".")[0]
    return bool(owner) and "norm" in type(network.get_submodule(owner)).__name__.lower()


def _is_bias(name: str) -> bool:
    return "bias" in name.rpartition(".")[2]


def _cut_name(side: str, part: Sequence[Layer]) -> str:
    count = len(part)
    what = f"{side} layer" if count == 1 else f"{side} {COUNTS.get(count, count)} layers"
    return f"{what} ({', '.join(layer.name for layer in part)})" if count <= SHOWN else what
