"""Where personal output biases start: at what a client's own classes say (``solver.bias_v``).

Menon, Jayasumana, Rawat, Jain, Veit, Kumar: Long-Tail Learning via Logit Adjustment. ICLR 2021. Where clients differ
only in how often classes occur, the best models of two clients differ by the logarithms of these frequencies alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedapm.core.per_sample import Protection
from fedapm.core.vec import Vec
from fedapm.data.federation import Federation
from fedapm.errors import FedapmError

SETTING = 'solver.bias_v = "frequencies"'
EACH = 0.5
"""What every class has in addition, so that a class a client lacks is unlikely and not impossible."""


def output_bias(names: Sequence[str]) -> str | None:
    """The bias of a network's last layer; None where it has none.

    Args:
        names: The network's trained parameters, in the order in which it declares them.
    """
    return next((name for name in reversed(names) if name.rpartition(".")[2] == "bias"), None)


def output_biases(module: nn.Module, personal: Sequence[str], before: Mapping[str, int]) -> tuple[str, ...]:
    """The personal biases of output layers: the network's own, and those that a method has added.

    Args:
        module: The network as the method uses it.
        personal: Its personal parameters.
        before: The sizes of the trained parameters of the network as it was given, by name and in order.
    """
    own = output_bias(list(before))
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    return tuple(
        name
        for name in personal
        if own is not None
        and name.rpartition(".")[2] == "bias"
        and sizes[name] == before[own]
        and (name == own or name not in before)
    )


def from_frequencies(v0: Vec, biases: Sequence[str], targets: Tensor) -> Vec:
    """v⁰ with the logarithms of how often classes occur as output biases; their mean is zero.

    Args:
        v0: Where the personal parameters start otherwise.
        biases: The names of the output biases among them.
        targets: The classes of a client's training samples.
    """
    changed = {}
    for name in biases:
        counts = torch.bincount(targets.reshape(-1).long(), minlength=v0[name].numel())
        logs = (counts.double() + EACH).log()
        changed[name] = (logs - logs.mean()).to(v0[name]).reshape(v0[name].shape)
    return Vec({name: changed.get(name, tensor) for name, tensor in v0.items()})


def check_class_biases(federation: Federation, sizes: Mapping[str, int], protection: Protection | None = None) -> None:
    """Refuse data without classes, and networks without an output bias for each of them.

    Args:
        federation: The clients.
        sizes: The sizes of the network's trained parameters, by name and in order.
        protection: What protects single samples, if anything does.
    """
    if protection is not None:
        raise FedapmError(
            f'{SETTING} counts a client\'s classes, which privacy.level = "sample" would have to hide; leave it out.'
        )
    if not federation[0].train.classified:
        raise FedapmError(f"{SETTING} is for data with classes, but the targets are quantities; leave it out.")
    name, classes = output_bias(list(sizes)), federation.classes
    outputs = sizes[name] if name is not None else 0
    # a client that is alone here need not have every class
    if outputs != classes if len(federation) > 1 else outputs < classes:
        last = f"its last bias, {name!r}, has {outputs} numbers" if name is not None else "it has no bias"
        raise FedapmError(
            f"{SETTING} needs a network whose last layer has a bias for each of the {classes} classes; {last}."
        )
