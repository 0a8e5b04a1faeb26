"""Recurrent layers written out step by step.

The kernels that run a whole layer cannot be mapped over clients or over samples: torch.func.vmap has no rule for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

KNOWN = (nn.GRU, nn.LSTM, nn.RNN)
States = tuple[Tensor, ...]
"""What a layer carries from step to step: h, and for an LSTM c."""
Cell = Callable[[Tensor, States, nn.RNNBase, str], States]


@contextmanager
def written_out(module: nn.Module) -> Iterator[None]:
    """A network whose recurrent layers can be mapped, for the time of a ``with`` block.

    They compute the same up to rounding. Layers with a forward pass of their own, and packed sequences, are left alone.

    Args:
        module: The network.
    """
    layers = recurrent_layers(module)
    for layer in layers:
        layer.forward = MethodType(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def recurrent_layers(module: nn.Module) -> list[nn.RNNBase]:
    """The recurrent layers of a network that have torch's own forward pass."""
    return [
        part
        for part in module.modules()
        if isinstance(part, KNOWN)
        and "forward" not in part.__dict__
        and any(type(part).forward is kind.forward for kind in KNOWN)
    ]


def later_products(layer: nn.RNNBase, steps: Tensor) -> int:
    """How many multiplications all steps of a sequence but the first take, in all layers and directions together.

    Args:
        layer: The recurrent layer.
        steps: The values it is given.
    """
    if steps.dim() == 2:
        samples, length = 1, steps.shape[0]
    else:
        samples, length = steps.shape[:2] if layer.batch_first else steps.shape[1::-1]
    return (length - 1) * samples * sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)


def _forward(layer: nn.RNNBase, input: Tensor, hx: Any = None) -> Any:
    if not isinstance(input, Tensor):
        return type(layer).forward(layer, input, hx)
    alone = input.dim() == 2
    steps = input.unsqueeze(1) if alone else input.transpose(0, 1) if layer.batch_first else input
    begin = _begin(layer, steps, hx, alone)
    cell, ends = CELLS[layer.mode], []
    directions = 2 if layer.bidirectional else 1
    for level in range(layer.num_layers):
        if level and layer.dropout:
            steps = functional.dropout(steps, layer.dropout, layer.training)
        outputs = []
        for direction in range(directions):
            suffix = f"_l{level}{'_reverse' if direction else ''}"
            place = level * directions + direction
            output, end = _run(layer, cell, suffix, steps, tuple(state[place] for state in begin))
            outputs.append(output)
            ends.append(end)
        steps = torch.cat(outputs, -1)
    ended = tuple(torch.stack(column) for column in zip(*ends, strict=True))
    if alone:
        steps, ended = steps.squeeze(1), tuple(state.squeeze(1) for state in ended)
    elif layer.batch_first:
        steps = steps.transpose(0, 1)
    return steps, ended if layer.mode == "LSTM" else ended[0]


def _begin(layer: nn.RNNBase, steps: Tensor, given: Any, alone: bool) -> States:
    """The states before the first step: (layers and directions, samples, width)."""
    if given is not None:
        states = tuple(given) if layer.mode == "LSTM" else (given,)
        return tuple(state.unsqueeze(1) for state in states) if alone else states
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    widths = [layer.proj_size or layer.hidden_size, *([layer.hidden_size] if layer.mode == "LSTM" else [])]
    return tuple(steps.new_zeros(count, steps.shape[1], width) for width in widths)


def _run(layer: nn.RNNBase, cell: Cell, suffix: str, steps: Tensor, states: States) -> tuple[Tensor, States]:
    """One layer in one direction: its outputs at all steps, and the states at the end."""
    # what the inputs add does not depend on the states, so it is one product for all steps
    inputs: Sequence[Tensor] = functional.linear(
        steps, getattr(layer, f"weight_ih{suffix}"), getattr(layer, f"bias_ih{suffix}", None)
    ).unbind(0)
    backwards = suffix.endswith("_reverse")
    outputs = []
    for one in reversed(inputs) if backwards else inputs:
        states = cell(one, states, layer, suffix)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if backwards else outputs), states


def _recurred(layer: nn.RNNBase, suffix: str, h: Tensor) -> Tensor:
    return functional.linear(h, getattr(layer, f"weight_hh{suffix}"), getattr(layer, f"bias_hh{suffix}", None))


def _gru(inputs: Tensor, states: States, layer: nn.RNNBase, suffix: str) -> States:
    """r, z = sigmoid(…); n = tanh(W x + r ⊙ (U h + b)); h ← n + z ⊙ (h − n)."""
    (h,), width = states, 2 * layer.hidden_size
    recurred = _recurred(layer, suffix, h)
    reset, keep = torch.sigmoid(inputs[..., :width] + recurred[..., :width]).chunk(2, -1)
    new = torch.tanh(torch.addcmul(inputs[..., width:], reset, recurred[..., width:]))
    return (torch.lerp(new, h, keep),)


def _lstm(inputs: Tensor, states: States, layer: nn.RNNBase, suffix: str) -> States:
    """i, f, g, o of W x + U h + b; c ← f ⊙ c + i ⊙ g; h ← o ⊙ tanh(c), projected where the layer has a projection."""
    h, c = states
    enter, forget, new, out = (inputs + _recurred(layer, suffix, h)).chunk(4, -1)
    c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
    h = torch.sigmoid(out) * torch.tanh(c)
    return (functional.linear(h, getattr(layer, f"weight_hr{suffix}")) if layer.proj_size else h), c


def _rnn(inputs: Tensor, states: States, layer: nn.RNNBase, suffix: str) -> States:
    """tanh(W x + U h + b), or the same rectified."""
    summed = inputs + _recurred(layer, suffix, states[0])
    return (torch.relu(summed) if layer.mode == "RNN_RELU" else torch.tanh(summed),)


CELLS: dict[str, Cell] = {"GRU": _gru, "LSTM": _lstm, "RNN_TANH": _rnn, "RNN_RELU": _rnn}
