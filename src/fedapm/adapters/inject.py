"""From a network to one with adapters: what is frozen, what is trained, and what of that is personal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from fedapm.adapters.base import AdaptedNetwork, as_adapted, share_base
from fedapm.adapters.settings import DEFAULT, LoraSettings
from fedapm.core.extras import require
from fedapm.core.pretrained import quiet_libraries
from fedapm.errors import FedapmError, closest

EXTRA = "lora"
ATTENTION = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin")
"""What libraries call the layers of attention that usually get adapters."""
KINDS = (nn.Linear, nn.Conv2d, nn.Embedding)
"""The layers that can have adapters."""
ONLY, SHARED, PERSONAL = "default", "shared", "personal"
"""The names of adapters in a network."""


def adapted(
    network: nn.Module, settings: LoraSettings, preset: str | None = None, client: str | None = None
) -> AdaptedNetwork:
    """Freeze a network and give it adapters.

    Args:
        network: The network; it is changed.
        settings: Which layers get adapters, and of which size.
        preset: What is shared. ``lora``: A, while B and the head are personal. ``ffa-lora``: B, while A stays as it was
            drawn and the head is personal. ``dual``: one adapter, beside a personal one. ``head``: the head, and there
            are no adapters. With patterns of the user's own, an adapter as for ``lora``.
        client: Whose network it is, where ranks differ.

    Returns:
        The same network.
    """
    how = preset or DEFAULT
    head = _head(network, settings)
    targets = () if how == "head" else _targets(network, settings, head)
    ranks = {ONLY: settings.rank}
    if how == "dual":
        ranks = {SHARED: settings.rank, PERSONAL: settings.rank_of(client or "")}
    for name in ranks if targets else ():
        _inject(network, name, targets, ranks[name], settings.alpha)
    result = as_adapted(network)
    result.head_names, result.targets = head, targets
    result.adapters = tuple(ranks) if targets else ()
    for part in network.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    for name in targets:
        layer: Any = network.get_submodule(name)
        layer.set_adapter(list(ranks))
    frozen = ".lora_A." if how == "ffa-lora" else None
    base = []
    for name, parameter in result.named_parameters():
        own = ".lora_" in name or _within(name, head)
        parameter.requires_grad_(own and not (frozen is not None and frozen in name))
        if not own:
            base.append(name)
    result.base_parameters = frozenset(base)
    result.fixed_buffers = frozenset(n for n, _ in result.named_buffers() if not _within(n, head))
    share_base(result)
    result.feature_memory = settings.memory << 20
    personal = {"lora": ("*.lora_B.*", *head), "ffa-lora": head, "dual": (f"*.{PERSONAL}.*", *head), "head": ()}
    result.adapter_stages = {how: personal[how]} if how in personal else {}
    stages: Mapping[str, Sequence[str]] = getattr(network, "stages", None) or {}
    result.stages = {**stages, "output": head, "head": head}  # type: ignore[assignment]  # plain attributes
    return result


def _inject(network: nn.Module, name: str, targets: Sequence[str], rank: int, alpha: float) -> None:
    peft = require("peft", EXTRA, "model.lora")
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0, bias="none")
    try:
        with quiet_libraries(EXTRA):
            peft.inject_adapter_in_model(config, network, adapter_name=name)
    except ValueError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise FedapmError(f"model.lora.targets: {reason}.") from None
    except (AssertionError, TypeError) as error:
        # peft makes adapters of a convolution with the constructor of its class
        other = next((n for n in targets if type(network.get_submodule(n)) not in KINDS), None)
        if other is None:
            raise
        kind = type(network.get_submodule(other)).__name__
        raise FedapmError(f"model.lora.targets: peft has no adapters for {other}, a {kind}; leave it out.") from error


def _targets(network: nn.Module, settings: LoraSettings, head: Sequence[str]) -> tuple[str, ...]:
    names = [n for n, part in network.named_modules() if isinstance(part, KINDS) and not _within(n, head)]
    layers = {n: network.get_submodule(n) for n in names}
    linear = [n for n, part in layers.items() if isinstance(part, nn.Linear)]
    pointwise = [n for n, part in layers.items() if isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1)]
    if settings.targets:
        found = [n for n in names if any(_named(n, pattern) for pattern in settings.targets)]
        for pattern in settings.targets:
            if not any(_named(n, pattern) for n in names):
                near = closest(pattern, [*names, *(n.rpartition(".")[2] for n in names)]) or names[:3]
                hint = ", ".join(repr(n) for n in near)
                raise FedapmError(f"model.lora.targets: no layer is called {pattern!r}; the closest are {hint}.")
    else:
        found = [n for n in linear if n.rpartition(".")[2] in ATTENTION] or linear or pointwise
    if settings.layers is not None:
        count = 1 + max((k for n in names if (k := _number(n)) is not None), default=-1)
        chosen = {k if k >= 0 else count + k for k in settings.layers}
        found = [n for n in found if _number(n) in chosen]
    if not found:
        raise FedapmError("model.lora: no layer is left to get adapters; see model.lora.targets, layers and head.")
    return tuple(found)


def _head(network: nn.Module, settings: LoraSettings) -> tuple[str, ...]:
    known = dict(network.named_modules())
    for name in settings.head:
        if name not in known:
            near = ", ".join(repr(n) for n in closest(name, known) or list(known)[1:4])
            raise FedapmError(f"model.lora.head: the network has no sub-module {name!r}; the closest are {near}.")
    if settings.head:
        return settings.head
    stages: Any = getattr(network, "stages", None) or {}
    if stages.get("head"):
        return tuple(stages["head"])
    linear = [n for n, part in known.items() if isinstance(part, nn.Linear)]
    if not linear:
        raise FedapmError("model.lora: the network has no linear layer that could be its head; give model.lora.head.")
    return (linear[-1],)


def _named(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _number(name: str) -> int | None:
    """The first number in a layer's name, such as 4 in ``encoder.layer.4.query``."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _within(name: str, modules: Sequence[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)
